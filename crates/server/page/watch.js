// How an answer is made: every pass is kept, and the blocks are drawn as they stood after one of them.

const MASK = "░";

// Tokens that steer rather than spell: the end of the answer, and what fills the block behind it.
const CONTROL = /^<\|[^|]*\|>$/;

export class Watch {
  // `view` has the elements to write to; `pace` gives the milliseconds a pass is shown at least.
  constructor(view, pace) {
    this.view = view;
    this.pace = pace;
    this.begin();
    view.timeline.oninput = () => {
      this.following = Number(view.timeline.value) === this.passes.length;
      this.draw(Number(view.timeline.value));
    };
  }

  begin() {
    clearTimeout(this.timer);
    this.timer = null;
    this.passes = [];
    this.shown = 0;
    this.following = true;
    this.usage = null;
    this.started = performance.now();
    this.draw(0);
  }

  // Takes one event of the stream.
  pass(event) {
    if (event.event !== "pass" || event.work === "commit") return;
    this.passes.push({ ...event, at: performance.now() - this.started });
    this.play();
  }

  end(usage) {
    this.usage = usage;
    this.draw(this.shown);
  }

  // Shows the passes that have come, one after the other, not faster than the pace.
  play() {
    if (this.timer !== null || !this.following || this.shown >= this.passes.length) return;
    this.draw(this.shown + 1);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.play();
    }, this.pace());
  }

  // Draws the state after `count` passes.
  draw(count) {
    this.shown = count;
    const { view } = this;
    const blocks = layout(this.passes.slice(0, count));
    view.blocks.replaceChildren(...blocks.map((block, index) => element(block, index, count - 1)));
    if (this.following && count > 0) view.blocks.lastElementChild?.scrollIntoView({ block: "nearest" });
    // Of the whole answer the server knows better.
    const whole = count === this.passes.length ? this.usage : null;
    const tokens = whole ? whole.completion_tokens : standing(blocks);
    view.passes.textContent = count;
    view.tokens.textContent = tokens;
    view.rate.textContent = count ? (tokens / count).toFixed(1) : "–";
    const time = whole ? whole.shamrock.elapsed_ms : this.passes[count - 1]?.at;
    view.seconds.textContent = count ? (time / 1000).toFixed(2) : "–";
    view.timeline.max = this.passes.length;
    view.timeline.value = count;
    view.shown.textContent = `${count} of ${this.passes.length}`;
  }
}

// Tokens of the answer that stand: the one that ends it is one, what fills the block behind it is none.
function standing(blocks) {
  const known = blocks.flatMap((block) => block.cells).filter((cell) => cell.kind === "known");
  const end = known.findIndex((cell) => CONTROL.test(cell.text));
  return end < 0 ? known.length : end + 1;
}

// Blocks of cells from passes. A cell is a mask, a draft, known, or a rejected draft.
function layout(passes) {
  const blocks = [];
  passes.forEach((pass, number) => {
    const known = (text, confidence) => ({ kind: "known", text, confidence, pass: number });
    if (pass.work === "denoise") {
      const block = (blocks[pass.block] ??= { title: "block", passes: 0, cells: masks(pass.width) });
      block.passes += 1;
      pass.rows.forEach((row, i) => (block.cells[row] = known(pass.text[i], pass.confidence[i])));
      // Some of them were fixed before, where a rule takes tokens back.
      pass.open.forEach((row) => (block.cells[row] = mask()));
    } else if (pass.work === "propose") {
      const draft = (text, i) => ({ kind: "draft", text, confidence: pass.confidence[i], pass: number });
      blocks.push({ title: "draft", passes: 1, cells: pass.text.map(draft) });
    } else if (pass.work === "verify") {
      if (pass.drafts.length === 0 || blocks.at(-1)?.title !== "draft") {
        blocks.push({ title: "draft", passes: 0, cells: [] });
      }
      const block = blocks.at(-1);
      block.passes += 1;
      block.cells = block.cells.map((cell, i) => ({ ...cell, kind: i < pass.accepted ? "known" : "rejected" }));
      block.cells.splice(pass.accepted, 0, known(pass.bonus_text, 1));
    } else if (pass.work === "decode") {
      if (blocks.at(-1)?.title !== "decoded") blocks.push({ title: "decoded", passes: 0, cells: [] });
      const block = blocks.at(-1);
      block.passes += 1;
      block.cells.push(known(pass.text[0], pass.confidence));
    }
  });
  return blocks;
}

const mask = () => ({ kind: "mask", text: MASK });
const masks = (width) => Array.from({ length: width }, mask);

function element(block, index, latest) {
  const section = document.createElement("section");
  section.className = "block";
  const title = document.createElement("h3");
  title.textContent = `${block.title} ${index + 1} · ${block.passes} ${block.passes === 1 ? "pass" : "passes"}`;
  const cells = document.createElement("div");
  cells.className = "cells";
  cells.append(...block.cells.map((cell) => cellElement(cell, latest)));
  section.append(title, cells);
  return section;
}

function cellElement(cell, latest) {
  const span = document.createElement("span");
  span.className = `cell ${cell.kind}`;
  const control = CONTROL.test(cell.text);
  span.textContent = control ? "■" : cell.text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
  if (cell.kind !== "mask") {
    span.classList.toggle("control", control);
    span.classList.toggle("fresh", cell.pass === latest);
    span.style.setProperty("--confidence", cell.confidence);
    span.title = `${control ? `${cell.text}, ` : ""}${(cell.confidence * 100).toFixed(1)}% sure, pass ${cell.pass + 1}`;
  }
  return span;
}
