// What check.py asks a page: returns plain data about figures, texts and widths. Changes nothing but that all details are open.
const transparent = /^(transparent|rgba\(.*, 0\))$/;

function parts(colour) {
  const numbers = colour.match(/[\d.]+/g);
  return numbers === null ? null : numbers.slice(0, 3).map(Number);
}

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

function background(element) {
  for (let place = element; place !== null; place = place.parentElement) {
    const colour = getComputedStyle(place).backgroundColor;
    if (!transparent.test(colour)) return parts(colour);
  }
  return [255, 255, 255];
}

function box(element) {
  const { left, top, right, bottom } = element.getBoundingClientRect();
  return { left: left + scrollX, top: top + scrollY, right: right + scrollX, bottom: bottom + scrollY };
}

const inside = (inner, outer, slack) =>
  inner.left >= outer.left - slack && inner.right <= outer.right + slack && inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;

function overlap(one, other) {
  const width = Math.min(one.right, other.right) - Math.max(one.left, other.left);
  const height = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
  const area = (place) => (place.right - place.left) * (place.bottom - place.top);
  return width > 0 && height > 0 ? (width * height) / Math.min(area(one), area(other)) : 0;
}

// The marks of one series: elements of the plot (the legend is not of it) that are drawn in its colour.
function series(svg, colour, frame) {
  const found = [...svg.querySelectorAll(`.plot [stroke="${colour}"], .plot [fill="${colour}"]`)];
  const marks = found.filter((element) => ["path", "polyline", "polygon", "circle", "rect", "line"].includes(element.tagName));
  const boxes = marks.map(box);
  const solid = marks.find((element) => Number(element.getAttribute("opacity") ?? 1) === 1);
  const shown = solid && getComputedStyle(solid);
  const painted = shown && parts(solid.getAttribute("stroke") === colour ? shown.stroke : shown.fill);
  return {
    colour,
    marks: marks.length,
    shown: boxes.filter((place) => place.right > place.left || place.bottom > place.top).length,
    outside: boxes.filter((place) => !inside(place, frame, 2)).length,
    contrast: painted ? contrast(painted, background(svg)) : 0,
  };
}

function figure(element) {
  const title = element.querySelector("h3, h4")?.textContent.trim() ?? "";
  const svg = element.querySelector("svg");
  const colours = (element.dataset.series ?? "").split(" ").filter((colour) => colour !== "");
  const caption = element.querySelector("figcaption")?.textContent.trim() ?? "";
  const facts = { title, caption, kind: element.dataset.plot ?? "", image: svg !== null, series: [] };
  if (svg === null) return facts;
  const frame = box(svg);
  const texts = [...svg.querySelectorAll(".plot text")].filter((text) => text.textContent.trim() !== "");
  const places = texts.map((text) => ({ ...box(text), words: text.textContent.trim() }));
  const collisions = places.flatMap((one, index) => places.slice(0, index).filter((other) => overlap(one, other) > 0.15).map((other) => `${one.words} / ${other.words}`));
  return {
    ...facts,
    width: frame.right - frame.left,
    height: frame.bottom - frame.top,
    inWindow: frame.left >= 0 && frame.right <= innerWidth + 1,
    role: svg.getAttribute("role"),
    name: svg.getAttribute("aria-label") ?? "",
    texts: texts.length,
    cut: places.filter((place) => !inside(place, frame, 3)).map((place) => place.words),
    collisions,
    series: colours.map((colour) => series(svg, colour, frame)),
  };
}

// The text with the least contrast to what is behind it.
function faintest() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let least = { contrast: 99, words: "" };
  while (walker.nextNode()) {
    const words = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (words === "" || ["STYLE", "SCRIPT"].includes(element.tagName) || element.getClientRects().length === 0) continue;
    const style = getComputedStyle(element);
    const colour = parts(element instanceof SVGElement ? style.fill : style.color);
    const found = contrast(colour, background(element));
    if (found < least.contrast) least = { contrast: found, words: words.slice(0, 60) };
  }
  return least;
}

document.querySelectorAll("details").forEach((element) => { element.open = true; });
return {
  title: document.title,
  text: document.body.innerText,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  windowWidth: innerWidth,
  pageWidth: document.scrollingElement.scrollWidth,
  paper: background(document.body),
  figures: [...document.querySelectorAll("figure")].map(figure),
  faintest: faintest(),
};
