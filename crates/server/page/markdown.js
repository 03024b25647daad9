// The Markdown that answers use, as DOM nodes: text is never taken for HTML.

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)?$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(?=\S)/;
const DASHES = /^ *\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$/;

// Lists and quotes in one another, deeper than anybody reads.
const DEEPEST = 8;

export function markdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.split("\n"), 0));
  return fragment;
}

// Takes lines from the front of what is left for as long as they fit.
function take(lines, fits) {
  const end = lines.findIndex((line) => !fits(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}

function blocks(all, depth) {
  const lines = [...all];
  const nodes = [];
  while (lines.length) {
    const [line] = lines;
    const match = (pattern) => pattern.exec(line);
    let found;
    if (!line.trim()) {
      lines.shift();
    } else if ((found = match(FENCE))) {
      nodes.push(code(lines, found[1]));
    } else if ((found = match(HEADING))) {
      lines.shift();
      nodes.push(make(`h${Math.min(found[1].length + 2, 6)}`, ...inline(found[2])));
    } else if (match(RULE)) {
      lines.shift();
      nodes.push(make("hr"));
    } else if (match(QUOTE) && depth < DEEPEST) {
      const quoted = take(lines, (other) => QUOTE.test(other)).map((other) => other.replace(QUOTE, ""));
      nodes.push(make("blockquote", ...blocks(quoted, depth + 1)));
    } else if (match(ITEM) && depth < DEEPEST) {
      nodes.push(list(lines, depth));
    } else if (isTable(lines)) {
      nodes.push(table(lines));
    } else {
      const [first] = lines.splice(0, 1);
      const rest = take(lines, (other) => other.trim() && !opens(other));
      // A line break in an answer is meant as one.
      const parts = [first, ...rest].map((part) => inline(part.trim()));
      nodes.push(make("p", ...parts.flatMap((part, i) => (i ? [make("br"), ...part] : part))));
    }
  }
  return nodes;
}

// Whether a line ends the paragraph before it.
const opens = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));

// A fence that is not closed reaches to the end: the answer is still coming.
function code(lines, fence) {
  lines.shift();
  const closes = (line) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
  const body = take(lines, (line) => !closes(line));
  lines.shift();
  return make("pre", make("code", body.join("\n")));
}

// Items of one indentation and kind. What is indented further belongs to the item before it.
function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(marker);
  const element = make(ordered ? "ol" : "ul");
  if (ordered) element.start = parseInt(marker, 10);
  const width = (line) => line.length - line.trimStart().length;
  while (lines.length) {
    const item = ITEM.exec(lines[0]);
    if (!item || width(lines[0]) > indent.length + 1 || /\d/.test(item[2]) !== ordered) break;
    const first = lines.shift().slice(item[0].length);
    const inner = take(lines, (line) => !line.trim() || width(line) > indent.length);
    const least = Math.min(item[0].length, ...inner.filter((line) => line.trim()).map(width));
    const nodes = blocks([first, ...inner.map((line) => line.slice(least))], depth + 1);
    // An item of one paragraph needs no space around it.
    if (nodes[0]?.tagName === "P") nodes.splice(0, 1, ...nodes[0].childNodes);
    element.append(make("li", ...nodes));
    if (lines.length && width(lines[0]) < indent.length) break;
  }
  return element;
}

const isTable = ([head, dashes]) => head.includes("|") && dashes?.includes("-") && DASHES.test(dashes)
  && cells(head).length === cells(dashes).length;

// Cells of a row; `\|` is no border.
function cells(line) {
  return line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines) {
  const [head, dashes] = lines.splice(0, 2);
  const sides = cells(dashes).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (tag, line) => make("tr", ...sides.map((side, i) => {
    const cell = make(tag, ...inline(cells(line)[i] ?? ""));
    cell.style.textAlign = side;
    return cell;
  }));
  const body = take(lines, (line) => line.includes("|")).map((line) => row("td", line));
  const element = make("div", make("table", make("thead", row("th", head)), make("tbody", ...body)));
  element.className = "table";
  return element;
}

// What can stand in a line, the first that fits.
const INLINE = new RegExp([
  /(?<tick>`{1,3})(?<span>.+?)\k<tick>(?!`)/,
  /\[(?<label>[^\[\]]+)\]\(<?(?<target>[^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)?)>?(?: +"[^"]*")?\)/,
  /<?(?<address>https?:\/\/[^\s<>]*[^\s<>.,;:!?'")\]])>?/,
  /\*\*(?=\S)(?<bold>.+?)(?<=\S)\*\*(?!\*)/,
  /(?<![\w*_])(?<mark>[*_])(?=[^\s*_])(?<italic>[^*_]*)(?<=\S)\k<mark>(?![\w*_])/,
].map((pattern) => pattern.source).join("|"), "g");

// Code spans, links, bold and italic; everything else is text.
function inline(text) {
  const nodes = [];
  let end = 0;
  for (const { 0: whole, index, groups } of text.matchAll(INLINE)) {
    const { span, label, target, address, bold, italic } = groups;
    let node;
    if (span !== undefined) node = make("code", span);
    else if (label !== undefined) node = link(target, inline(label));
    else if (address !== undefined) node = link(address, [address]);
    else if (bold !== undefined) node = make("strong", ...inline(bold));
    else node = make("em", ...inline(italic));
    if (!node) continue;
    nodes.push(text.slice(end, index), node);
    end = index + whole.length;
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

// A link that leads out; nothing for addresses of another kind, which stay text.
function link(target, children) {
  const url = parse(target);
  if (!["http:", "https:", "mailto:"].includes(url?.protocol)) return null;
  const element = make("a", ...children);
  element.href = url.href;
  element.rel = "noopener noreferrer";
  element.target = "_blank";
  return element;
}

function parse(target) {
  try {
    return new URL(target);
  } catch {
    return null;
  }
}

function make(tag, ...children) {
  const element = document.createElement(tag);
  element.append(...children);
  return element;
}
