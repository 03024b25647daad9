// The little of Markdown that answers use, as DOM nodes: text is never taken for HTML.

export function markdown(text) {
  const fragment = document.createDocumentFragment();
  // Every other piece is fenced code; an open fence reaches to the end.
  text.split(/^```/m).forEach((piece, i) => {
    if (i % 2 === 1) {
      const pre = make("pre", make("code", piece.replace(/^[^\n]*\n?/, "").replace(/\n$/, "")));
      fragment.append(pre);
    } else {
      blocks(piece).forEach((node) => fragment.append(node));
    }
  });
  return fragment;
}

function blocks(text) {
  return text.split(/\n{2,}/).map((block) => block.trim()).filter(Boolean).flatMap((block) => {
    const lines = block.split("\n");
    const heading = /^(#{1,6}) +(.*)$/.exec(lines[0]);
    if (heading) {
      const rest = lines.slice(1).join("\n");
      return [make(`h${Math.min(heading[1].length + 2, 6)}`, ...inline(heading[2])), ...blocks(rest)];
    }
    for (const [tag, marker] of [["ul", /^[-*] +/], ["ol", /^\d+[.)] +/]]) {
      if (lines.every((line) => marker.test(line))) {
        return [make(tag, ...lines.map((line) => make("li", ...inline(line.replace(marker, "")))))];
      }
    }
    // A line break in an answer is meant as one.
    const parts = lines.flatMap((line, i) => (i ? [make("br"), ...inline(line)] : inline(line)));
    return [make("p", ...parts)];
  });
}

// Code spans, bold and italic; everything else is text.
function inline(text) {
  const parts = text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/);
  return parts.filter(Boolean).map((part) => {
    if (/^`[^`]+`$/.test(part)) return make("code", part.slice(1, -1));
    if (/^\*\*[^*]+\*\*$/.test(part)) return make("strong", part.slice(2, -2));
    if (/^\*[^*\s][^*]*\*$/.test(part)) return make("em", part.slice(1, -1));
    return document.createTextNode(part);
  });
}

function make(tag, ...children) {
  const element = document.createElement(tag);
  element.append(...children);
  return element;
}
