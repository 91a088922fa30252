// All runs as lines across their parameters and results (parallel coordinates): drag along an axis to keep a range, point
// at a line to read it, click it for its run. The table of runs shows what is kept.
const PLOT = document.getElementById("search-plot");
const MOST_LINES = 2000;
const KEPT = new Set(CARDS.runs.keys()); // places of runs
const ends = values => [Math.min(...values), Math.max(...values)];

function axisOf(name, values) {
  const known = values.filter(value => value !== null && value !== "");
  const distinct = [...new Set(known)].sort((one, other) => isNaN(one) || isNaN(other) ? String(one).localeCompare(String(other)) : one - other);
  if (distinct.length < 2) return null;
  if (distinct.length <= 10 || known.some(isNaN)) { // evenly spread, in order
    const place = new Map(distinct.map((value, at) => [value, at / (distinct.length - 1)]));
    const ticks = distinct.length <= 10 ? distinct.map(value => [place.get(value), shown(name, isNaN(value) ? value : Number(value))]) : [];
    return { name, values, ticks, at: value => place.get(value) };
  }
  const [low, high] = ends(known.map(Number));
  const logarithmic = low > 0 && high / low > 5;
  const scale = logarithmic ? Math.log : Number;
  const at = value => value === null || value === "" ? undefined : (scale(value) - scale(low)) / (scale(high) - scale(low));
  const back = share => logarithmic ? Math.exp(scale(low) + share * (scale(high) - scale(low))) : low + share * (high - low);
  return { name, values, ticks: [0, 0.25, 0.5, 0.75, 1].map(share => [share, shown(name, Number(back(share).toPrecision(2)))]), at };
}

const AXES = [
  ...CARDS.fields.filter(name => name !== "seed").map(name => axisOf(name, CARDS.runs.map(run => run.fields[CARDS.fields.indexOf(name)]))),
  ...[...new Set([CARDS.decisive, "train_s", "min_loss", "test_metric"])].filter(name => CARDS.results.includes(name))
    .map(name => axisOf(name, CARDS.runs.map(run => run.results[CARDS.results.indexOf(name)]))),
].filter(axis => axis);
const OFF = new Set(), BRUSHES = new Map(); // by name of the axis: the shares between which runs are kept
const better = AXES.find(axis => axis.name === CARDS.decisive);
const MORE_IS_BETTER = CARDS.decisive === "test_metric";

function drawn() { // the places of the runs that have a line: of too many a quarter the best, and others evenly spread
  if (CARDS.runs.length <= MOST_LINES) return new Set(CARDS.runs.keys());
  const rank = place => { const share = better?.at(better.values[place]); return share === undefined ? 2 : MORE_IS_BETTER ? 1 - share : share; };
  const order = [...CARDS.runs.keys()].sort((one, other) => rank(one) - rank(other));
  const best = MOST_LINES / 4, others = order.length - best, step = others / (MOST_LINES - best);
  return new Set(order.filter((_, at) => at < best || Math.floor((at - best) / step) !== Math.floor((at - best - 1) / step)));
}
const DRAWN = drawn();

function colour(place) { // from the best (blue) over grey to the worst (vermilion)
  const share = better?.at(better.values[place]);
  if (share === undefined) return "#999999";
  const bad = MORE_IS_BETTER ? 1 - share : share;
  const mix = (from, to, part) => `rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * part)).join(" ")})`;
  return bad < 0.5 ? mix([0, 114, 178], [153, 153, 153], 2 * bad) : mix([153, 153, 153], [213, 94, 0], 2 * bad - 1);
}

function drawPlot() {
  const axes = AXES.filter(axis => !OFF.has(axis.name));
  const [width, height, top, bottom] = [Math.max(600, 150 * axes.length), 340, 30, 20];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Each run as a line across its parameters and results. The numbers are in the table of runs.");
  const left = 40 + 6.5 * Math.max(4, ...axes.slice(0, 1).flatMap(axis => axis.ticks.map(([, text]) => text.length)));
  const x = at => left + at * (width - left - 60) / Math.max(axes.length - 1, 1);
  const y = share => height - bottom - share * (height - top - bottom);
  const lines = CARDS.runs.map((run, place) => {
    const points = axes.map((axis, at) => [x(at), axis.at(axis.values[place])]).filter(([, share]) => share !== undefined);
    if (points.length < axes.length || !DRAWN.has(place)) return null; // no result, or one too many
    const line = draw(svg, "path", { d: "M" + points.map(([own, share]) => `${own} ${y(share).toFixed(1)}`).join("L"), stroke: colour(place), class: "run-line" });
    line.addEventListener("pointerenter", () => { line.classList.add("on"); document.getElementById("search-said").textContent = `Run ${place + 1}: ${run.point}; ${CARDS.results.map((name, at) => `${name} ${shown(name, run.results[at])}`).slice(0, 6).join(", ")}`; });
    line.addEventListener("pointerleave", () => line.classList.remove("on"));
    line.addEventListener("click", () => { location.hash = `run-${place + 1}`; });
    return line;
  });
  axes.forEach((axis, at) => drawAxis(svg, axis, x(at), y, top, height - bottom, lines));
  PLOT.replaceChildren(svg);
  svg.style.minWidth = `${Math.min(width, 110 * axes.length)}px`;
  keep(lines);
}

function drawAxis(svg, axis, x, y, top, bottom, lines) {
  draw(svg, "text", { x, y: 14, class: "middle name" }, axis.name);
  draw(svg, "path", { d: `M${x} ${top}V${bottom}`, class: "axis" });
  for (const [share, text] of axis.ticks) draw(svg, "text", { x: x - 6, y: y(share) + 4, class: "end tick" }, text);
  const range = draw(svg, "rect", { x: x - 8, width: 16, y: top, height: 0, class: "range" });
  const grip = draw(svg, "rect", { x: x - 14, width: 28, y: top - 8, height: bottom - top + 16, class: "grip" });
  const show = () => {
    const own = BRUSHES.get(axis.name);
    range.setAttribute("height", own ? Math.max(2, y(own[0]) - y(own[1])) : 0);
    if (own) range.setAttribute("y", y(own[1]));
  };
  const shareAt = event => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return Math.min(1.02, Math.max(-0.02, (bottom - place.y) / (bottom - top)));
  };
  let from = null;
  grip.addEventListener("pointerdown", event => { from = shareAt(event); grip.setPointerCapture(event.pointerId); });
  grip.addEventListener("pointermove", event => {
    if (from === null) return;
    BRUSHES.set(axis.name, [from, shareAt(event)].sort((one, other) => one - other));
    show();
  });
  grip.addEventListener("pointerup", event => {
    if (Math.abs(shareAt(event) - from) < 0.02) BRUSHES.delete(axis.name); // a click frees the axis
    from = null;
    show();
    keep(lines);
  });
  show();
}

function keep(lines) {
  for (const place of CARDS.runs.keys()) {
    const inside = [...BRUSHES].every(([name, [low, high]]) => {
      const axis = AXES.find(one => one.name === name), share = axis.at(axis.values[place]);
      return share >= low && share <= high;
    });
    inside ? KEPT.add(place) : KEPT.delete(place);
    lines[place]?.classList.toggle("off", !inside);
  }
  document.getElementById("search-kept").textContent = `${KEPT.size} of ${CARDS.runs.length} runs kept.${DRAWN.size < CARDS.runs.length ? ` ${DRAWN.size} have a line: the ${MOST_LINES / 4} best, and others evenly spread.` : ""}`;
  showImportance();
  filterTable();
}

// How much each parameter alone tells of the result that decides, among the runs that are kept: the share of the spread of
// their ranks that lies between its values (Kruskal and Wallis's H), adjusted for chance: (H - k + 1) / (n - k).
function ranks(values) { // midranks, from 1
  const order = [...values.keys()].sort((one, other) => values[one] - values[other]);
  const found = [];
  for (let from = 0, to; from < order.length; from = to) {
    for (to = from; to < order.length && values[order[to]] === values[order[from]];) to++;
    for (const place of order.slice(from, to)) found[place] = (from + 1 + to) / 2;
  }
  return found;
}
function importance(values, own) { // of as many values as ranks; null where they tell nothing
  const groups = [...Map.groupBy(own.keys(), place => values[place]).values()];
  const mean = (own.length + 1) / 2, total = own.reduce((sum, rank) => sum + (rank - mean) ** 2, 0);
  if (groups.length < 2 || own.length <= groups.length || !total) return null;
  const between = groups.reduce((sum, places) => sum + (places.reduce((all, place) => all + own[place] - mean, 0)) ** 2 / places.length, 0);
  const h = (own.length - 1) * between / total;
  return Math.max(0, (h - groups.length + 1) / (own.length - groups.length));
}
const WORST = ["diverged", "beaten"];
function showImportance() {
  const at = CARDS.results.indexOf(CARDS.decisive);
  const badness = ({ status, results }) => WORST.includes(status) ? Infinity : MORE_IS_BETTER ? -results[at] : results[at];
  const told = [...KEPT].filter(place => CARDS.runs[place].results[at] != null || WORST.includes(CARDS.runs[place].status));
  const own = ranks(told.map(place => badness(CARDS.runs[place])));
  const shares = AXES.filter(axis => CARDS.fields.includes(axis.name))
    .map(axis => [axis.name, importance(told.map(place => axis.values[place]), own)])
    .filter(([, share]) => share !== null).sort(([, one], [, other]) => other - one);
  const rows = shares.map(([name, share]) => {
    const row = make("tr"), cell = make("td"), number = make("td", `${Math.round(100 * share)} %`, { class: "number" });
    cell.append(make("meter", null, { value: share, "aria-hidden": true }));
    row.append(make("th", name, { scope: "row" }), cell, number);
    return row;
  });
  document.getElementById("importance").hidden = !rows.length;
  document.getElementById("importance-of").textContent = `How much each parameter tells of ${CARDS.decisive}, in ${told.length} runs`;
  document.getElementById("importance-rows").replaceChildren(...rows);
}

async function filterTable() {
  const bundle = Object.keys(window).find(name => name.startsWith("_itables_"));
  if (!bundle) return;
  const { jQuery } = await window[bundle];
  const table = jQuery("#runs-table");
  if (!jQuery.fn.dataTable.isDataTable(table)) return;
  if (!filterTable.added) {
    jQuery.fn.dataTable.ext.search.push((settings, texts, place) => settings.nTable.id !== "runs-table" || KEPT.has(place));
    filterTable.added = true;
  }
  table.DataTable().draw();
}

if (PLOT && AXES.length > 2) {
  const choice = document.getElementById("search-axes");
  for (const { name } of AXES) {
    const label = make("label"), box = make("input", null, { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? OFF.delete(name) : OFF.add(name); BRUSHES.delete(name); drawPlot(); });
    label.append(box, ` ${name}`);
    choice.append(label);
  }
  const free = make("button", "Keep all", { type: "button" });
  free.addEventListener("click", () => { BRUSHES.clear(); drawPlot(); });
  choice.append(free);
  drawPlot();
  document.getElementById("search").hidden = false;
}

// On paper the table of runs has all its rows.
addEventListener("beforeprint", () => pages(-1));
addEventListener("afterprint", () => pages(25));
function pages(length) {
  const bundle = Object.keys(window).find(name => name.startsWith("_itables_"));
  window[bundle]?.then(({ jQuery }) => {
    const table = jQuery("#runs-table");
    if (jQuery.fn.dataTable.isDataTable(table)) table.DataTable().page.len(length).draw();
  });
}
