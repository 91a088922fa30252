// A figure in the whole window: wheel, pinch, keys and buttons zoom, dragging and arrows move it; Escape closes. What its
// legend names is hidden and shown by a click there: the names of what is drawn begin with `series.`, of the legend `key.`.
const FIT = 0.94; // of the window
const MOST = 40; // times as large as what fits
const PER_KEY = 1.25;
const PER_ARROW = 60; // pixels
const STILL = 5; // pixels that a pointer may move in a click
const IN_SIGHT = 0.2; // of the picture, or of the stage where that is smaller, stays on the stage
addEventListener("DOMContentLoaded", () => {
  const element = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
  const dialog = element("dialog", { id: "zoom" });
  const stage = element("div", { className: "stage", tabIndex: 0 });
  const picture = element("div", { className: "picture" });
  const shadow = picture.attachShadow({ mode: "open" }); // the names in a figure are its own
  const place = { x: 0, y: 0, width: 0 }; // of the picture on the stage, in pixels
  const fingers = new Map(); // where each pointer is that is down
  let pressed = null; // where the first one came down

  const drawn = () => shadow.querySelector("svg");
  const ratio = () => drawn().viewBox.baseVal.height / drawn().viewBox.baseVal.width || 1;
  const fitting = () => FIT * Math.min(stage.clientWidth, stage.clientHeight / ratio());
  function show() {
    const height = place.width * ratio();
    const kept = (at, size, room) => {
      const seen = IN_SIGHT * Math.min(size, room);
      return Math.min(room - seen, Math.max(at, seen - size));
    };
    place.x = kept(place.x, place.width, stage.clientWidth);
    place.y = kept(place.y, height, stage.clientHeight);
    picture.style.width = `${place.width}px`; // not scaled but drawn anew: sharp at any size
    picture.style.transform = `translate(${place.x}px, ${place.y}px)`;
  }
  function fit() {
    place.width = fitting();
    place.x = (stage.clientWidth - place.width) / 2;
    place.y = (stage.clientHeight - place.width * ratio()) / 2;
    show();
  }
  function zoom(by, x = stage.clientWidth / 2, y = stage.clientHeight / 2) { // what is at x, y stays there
    const width = Math.min(MOST * fitting(), Math.max(0.5 * fitting(), place.width * by));
    place.x = x - (x - place.x) * width / place.width;
    place.y = y - (y - place.y) * width / place.width;
    place.width = width;
    show();
  }
  function onStage(x, y) { // a place of the window
    const box = stage.getBoundingClientRect();
    return [x - box.left, y - box.top];
  }
  function move(x, y) {
    place.x += x;
    place.y += y;
    show();
  }
  async function open(image) {
    const words = image.closest("figure").id.replace("figure-", "").replaceAll("_", " ");
    dialog.setAttribute("aria-label", `Figure: ${words}`);
    const text = await (await fetch(image.src)).text();
    const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", image.alt);
    const style = element("style", { textContent: "svg { display: block; height: auto; width: 100%; } [role=button] { cursor: pointer; }" });
    shadow.replaceChildren(style, svg);
    stage.append(picture);
    dialog.showModal();
    namedKeys(svg);
    hint.hidden = !svg.querySelector("[role=button]");
    fit();
    stage.focus();
  }
  function namedKeys(svg) { // each entry of the legend, mark and words, becomes a button
    const entries = Map.groupBy(svg.querySelectorAll("[id^='key.']"), part => part.id.split(".")[1]);
    for (const [name, parts] of entries) {
      const series = svg.querySelectorAll(`[id^='series.${name}.']`);
      if (!series.length) continue;
      const boxes = parts.map(part => part.getBBox());
      const [left, top] = ["x", "y"].map(side => Math.min(...boxes.map(box => box[side])));
      const [right, bottom] = [["x", "width"], ["y", "height"]].map(([side, size]) => Math.max(...boxes.map(box => box[side] + box[size])));
      const button = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const attributes = { x: left - 1, y: top - 1, width: right - left + 2, height: bottom - top + 2, fill: "transparent",
        role: "button", tabindex: 0, "aria-pressed": true, "aria-label": `Show ${name.replaceAll("-", " ")}` };
      for (const [attribute, value] of Object.entries(attributes)) button.setAttribute(attribute, value);
      button.toggle = () => {
        const shows = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", shows);
        for (const one of series) one.style.visibility = shows ? "" : "hidden";
        for (const one of parts) one.style.opacity = shows ? "" : 0.3;
      };
      parts.at(-1).parentNode.append(button);
    }
  }

  const keys = {
    "+": () => zoom(PER_KEY), "=": () => zoom(PER_KEY), "-": () => zoom(1 / PER_KEY), 0: fit,
    ArrowLeft: () => move(PER_ARROW, 0), ArrowRight: () => move(-PER_ARROW, 0),
    ArrowUp: () => move(0, PER_ARROW), ArrowDown: () => move(0, -PER_ARROW),
  };
  dialog.addEventListener("keydown", event => {
    if (event.key === "Escape") event.stopPropagation(); // it closes this, not the run behind it
    if (["Enter", " "].includes(event.key) && shadow.activeElement?.toggle) {
      event.preventDefault();
      shadow.activeElement.toggle();
    }
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  stage.addEventListener("wheel", event => {
    event.preventDefault();
    const pixels = event.deltaY * [1, 16, 400][event.deltaMode]; // given in pixels, lines or pages
    zoom(2 ** (-pixels / 300), ...onStage(event.clientX, event.clientY));
  }, { passive: false });
  stage.addEventListener("pointerdown", event => {
    stage.setPointerCapture(event.pointerId);
    pressed = fingers.size ? null : event;
    fingers.set(event.pointerId, event);
  });
  stage.addEventListener("pointerup", event => {
    if (!pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > STILL) return;
    shadow.elementFromPoint(event.clientX, event.clientY)?.toggle?.();
  });
  stage.addEventListener("pointermove", event => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const other = [...fingers.values()].find(finger => finger.pointerId !== event.pointerId);
    fingers.set(event.pointerId, event);
    if (!other) return move(event.clientX - before.clientX, event.clientY - before.clientY);
    const apart = finger => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY) || 1;
    const between = onStage((event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2);
    zoom(apart(event) / apart(before), ...between);
    move((event.clientX - before.clientX) / 2, (event.clientY - before.clientY) / 2);
  });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, event => fingers.delete(event.pointerId));
  stage.addEventListener("dblclick", event => zoom(2, ...onStage(event.clientX, event.clientY)));
  dialog.addEventListener("close", () => {
    fingers.clear(); // one that is still down is not lifted on the stage
    picture.remove();
  });
  addEventListener("resize", () => { if (dialog.open) fit(); });

  const bar = element("p", { className: "bar-of-zoom" });
  const hint = element("span", { className: "note", textContent: "Click on the legend to hide a line and to show it again. " });
  bar.append(hint);
  const buttons = [
    ["+", "Larger", () => zoom(PER_KEY)], ["\u2212", "Smaller", () => zoom(1 / PER_KEY)],
    ["Fit", "Fit into the window", fit], ["Close", "Close", () => dialog.close()],
  ];
  for (const [words, name, act] of buttons) {
    const button = element("button", { type: "button", textContent: words, title: name });
    button.setAttribute("aria-label", name);
    button.addEventListener("click", act);
    bar.append(button, " ");
  }
  dialog.append(bar, stage);
  document.body.append(dialog);
  for (const image of document.querySelectorAll("figure img")) {
    const button = element("button", { type: "button", textContent: "Enlarge" });
    button.addEventListener("click", () => open(image));
    image.addEventListener("click", () => open(image));
    image.closest("figure").querySelector("figcaption").append(" ", button);
  }
});
