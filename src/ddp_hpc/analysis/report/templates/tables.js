// Buttons of each table: copy it, save it as CSV, copy it as LaTeX (booktabs).
const cellsOf = table => [...table.rows].map(row => [...row.cells].filter(cell => !cell.classList.contains("of-runs"))
  .map(cell => cell.innerText.replace(/\s+/g, " ").trim()));
const csvOf = rows => rows.map(row => row.map(text => `"${(/^[=+\-@]/.test(text) && isNaN(text) ? "'" : "") + text.replaceAll('"', '""')}"`).join(",")).join("\r\n") + "\r\n";
const inLatex = text => text.replace(/[\\{}~^<>#$%&_]/g, letter => ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}" })[letter] ?? `\\${letter}`);
function latexOf(rows) {
  const [head, ...body] = rows.map(row => row.map(inLatex).join(" & ") + " \\\\");
  const numeric = rows[0].map((_, at) => rows.slice(1).every(row => row[at] === "" || !isNaN(row[at])) ? "r" : "l").join("");
  return ["% needs \\usepackage{booktabs}", `\\begin{tabular}{${numeric}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}", ""].join("\n");
}
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page that is opened as a file may lack that permission
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}
function save(text, name, type) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
const tableAsLatex = (data, event) => copy(latexOf([data.header, ...data.body].map(row => row.map(String))), event.currentTarget);
// What is large lies in the page compressed, as gzip in base64.
const unpackedBytes = async text => new Response(
  new Blob([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
const unpacked = async text => new TextDecoder().decode(await unpackedBytes(text));
addEventListener("DOMContentLoaded", async () => {
  for (const image of document.querySelectorAll("img[data-packed]")) {
    image.src = URL.createObjectURL(new Blob([await unpackedBytes(image.dataset.packed)], { type: "image/svg+xml" }));
    delete image.dataset.packed;
  }
});
addEventListener("DOMContentLoaded", () => {
  for (const tools of document.querySelectorAll(".tools")) {
    const table = document.getElementById(tools.dataset.table);
    const button = (words, act) => {
      const made = Object.assign(document.createElement("button"), { type: "button", textContent: words });
      made.addEventListener("click", () => act(made));
      tools.prepend(made, " ");
    };
    button("LaTeX", made => copy(latexOf(cellsOf(table)), made));
    button("CSV", () => save(csvOf(cellsOf(table)), `${tools.dataset.name}.csv`, "text/csv"));
    button("Copy", made => copy(cellsOf(table).map(row => row.join("\t")).join("\n"), made));
  }
});
