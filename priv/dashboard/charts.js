// Charts as SVG: the shape is a path, all of its looks are in the style sheet.

import { el, svg, setText, setAttribute } from "./dom.js";

const round = (number) => Math.round(number * 100) / 100;

// The highest value of an axis: 1, 2 or 5 times a power of ten, or of two for bytes.
export function ceiling(value, base = 10) {
  if (!(value > 0)) return 1;
  if (base === 2) {
    const power = 2 ** Math.floor(Math.log2(value));
    return [1, 1.25, 1.5, 2].map((n) => n * power).find((n) => n >= value);
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

// A path through `[x, y]` points within 0..width and 0..height. A point without a value breaks the line.
export function line(points, [from, to], top, width, height) {
  const x = (at) => round(((at - from) / Math.max(to - from, 1)) * width);
  const y = (value) => round(height - (Math.min(value, top) / top) * (height - 1.5) - 0.75);
  let path = "";
  let pen = false;
  for (const [at, value] of points) {
    if (value === null) {
      pen = false;
      continue;
    }
    path += `${pen ? "L" : "M"}${x(at)} ${y(value)}`;
    pen = true;
  }
  return path;
}

function area(points, range, top, width, height) {
  const there = points.filter(([, value]) => value !== null);
  if (there.length < 2) return "";
  const x = (at) => round(((at - range[0]) / Math.max(range[1] - range[0], 1)) * width);
  return `${line(there, range, top, width, height)}L${x(there[there.length - 1][0])} ${height}L${x(there[0][0])} ${height}Z`;
}

export function spark() {
  const path = svg("path", { class: "stroke" });
  const node = svg("svg", { class: "spark", viewBox: "0 0 72 20", preserveAspectRatio: "none", "aria-hidden": "true" }, path);
  node.path = path;
  return node;
}

export function drawSpark(node, values, top) {
  const points = values.map((value, index) => [index, value]);
  setAttribute(node, "class", Math.max(...values) > 0 ? "spark" : "spark idle");
  setAttribute(node.path, "d", line(points, [values.length - 40, values.length - 1], ceiling(top), 72, 20));
}

// A chart with a scale, and the value under the pointer. `kind` is its class, `show` makes text of a value.
export function chart(kind, title, show, base = 10) {
  const fill = svg("path", { class: "fill" });
  const stroke = svg("path", { class: "stroke" });
  const grid = [0.25, 0.5, 0.75].map((y) => svg("line", { class: "grid", x1: 0, x2: 300, y1: y * 100, y2: y * 100 }));
  const cursor = svg("line", { class: "cursor", y1: 0, y2: 100, x1: -9, x2: -9 });
  const plot = svg("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", "aria-hidden": "true" }, ...grid, fill, stroke, cursor);
  const value = el("b", {}, "–");
  const [when, from] = [el("span", { class: "when" }), el("span", {})];
  const node = el("figure", { class: `chart ${kind}` },
    el("figcaption", {}, title, " ", value, when),
    el("div", { class: "plot" }, plot),
    el("div", { class: "x" }, from, el("span", {}, "now")));
  let points = [];
  let pointed = null;
  let scale = "";

  const label = () => {
    const last = points[points.length - 1];
    let point = last;
    if (pointed !== null && points.length > 1) {
      const at = points[0][0] + pointed * (last[0] - points[0][0]);
      point = points.reduce((best, one) => (Math.abs(one[0] - at) < Math.abs(best[0] - at) ? one : best));
      const x = String(round(((point[0] - points[0][0]) / (last[0] - points[0][0])) * 300));
      setAttribute(cursor, "x1", x);
      setAttribute(cursor, "x2", x);
    }
    cursor.classList.toggle("on", pointed !== null);
    setText(value, point ? show(point[1]) : "–");
    setText(when, pointed !== null && point ? `${Math.round((last[0] - point[0]) / 1000)} s ago` : scale);
  };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    pointed = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    label();
  });
  plot.addEventListener("pointerleave", () => {
    pointed = null;
    label();
  });

  node.draw = (series) => {
    const first = series.findIndex(([, one]) => one !== null);
    points = first < 0 ? [] : series.slice(first);
    const there = points.filter(([, one]) => one !== null);
    const range = points.length > 1 ? [points[0][0], points[points.length - 1][0]] : [0, 1];
    const high = ceiling(Math.max(0, ...there.map(([, one]) => one)) * 1.1, base);
    setAttribute(fill, "d", area(points, range, high, 300, 100));
    setAttribute(stroke, "d", line(points, range, high, 300, 100));
    scale = there.length > 1 ? `0 – ${show(high)}` : "";
    const seconds = Math.round((range[1] - range[0]) / 1000);
    setText(from, points.length > 1 ? (seconds >= 120 ? `${Math.round(seconds / 60)} min ago` : `${seconds} s ago`) : "");
    label();
  };
  return node;
}
