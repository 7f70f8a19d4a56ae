// Charts over time (SVG) and the map of the KV blocks (canvas).

const LEFT = 38, BOTTOM = 18, TOP = 6;
const STATES = { h: ".c-held", s: ".c-shared", c: ".c-cached", f: ".c-free" }; // their legend
const MOST_CELLS = 6000;

export function stackedAreas(svg, samples, names, seconds) {
  const frame = new Frame(svg, samples, seconds, (s) => names.reduce((sum, name) => sum + s[name], 0), true);
  const below = samples.map(() => 0);
  const paths = names.map((name) => {
    const bottom = below.slice();
    samples.forEach((sample, i) => { below[i] += sample[name]; });
    const up = samples.map((sample, i) => `${frame.x(sample)},${frame.y(below[i])}`);
    const down = samples.map((sample, i) => `${frame.x(sample)},${frame.y(bottom[i])}`).reverse();
    return `<polygon class="a-${name}" points="${up.concat(down).join(" ")}"/>`;
  });
  frame.draw(paths);
}

export function lines(svg, samples, series, seconds) {
  const frame = new Frame(svg, samples, seconds, (s) => Math.max(...series.map(([key]) => s[key])), false);
  frame.draw(series.map(([key, name]) => {
    const points = samples.map((sample) => `${frame.x(sample)},${frame.y(sample[key])}`);
    return `<polyline class="l-${name}" points="${points.join(" ")}"/>`;
  }));
}

class Frame {
  constructor(svg, samples, seconds, height, whole) {
    this.svg = svg;
    this.width = svg.clientWidth || 300;
    this.height = svg.clientHeight || 132;
    this.seconds = seconds;
    this.end = samples.length ? samples[samples.length - 1].time : 0;
    this.step = niceStep(Math.max(whole ? 2 : 4, ...samples.map(height)), whole);
    this.top = this.step * Math.max(1, Math.ceil(Math.max(0, ...samples.map(height)) / this.step));
  }

  x(sample) {
    const part = 1 - (this.end - sample.time) / this.seconds;
    return (LEFT + part * (this.width - LEFT - 4)).toFixed(1);
  }

  y(value) {
    return (TOP + (1 - value / this.top) * (this.height - TOP - BOTTOM)).toFixed(1);
  }

  draw(shapes) {
    const parts = [];
    for (let value = 0; value <= this.top; value += this.step) {
      const y = this.y(value);
      parts.push(`<line class="grid" x1="${LEFT}" x2="${this.width - 4}" y1="${y}" y2="${y}"/>`);
      parts.push(`<text x="${LEFT - 6}" y="${Number(y) + 4}" text-anchor="end">${short(value)}</text>`);
    }
    parts.push(...shapes);
    const base = this.height - 4;
    parts.push(`<text x="${LEFT}" y="${base}">−${Math.round(this.seconds / 60)} min</text>`);
    parts.push(`<text x="${this.width - 4}" y="${base}" text-anchor="end">now</text>`);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.innerHTML = parts.join("");
  }
}

function niceStep(top, whole) {
  const raw = top / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  return whole ? Math.max(1, Math.round(step)) : step;
}

export function short(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${Math.round(value / 1e3)}k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

// Draws one cell a block; pools of very many blocks share cells, which then show the busiest state.
export function blockMap(canvas, states) {
  const color = Object.fromEntries(Object.entries(STATES).map(([state, name]) => [state, getComputedStyle(document.querySelector(name)).backgroundColor]));
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const group = Math.max(1, Math.ceil(states.length / MOST_CELLS));
  const cells = Math.ceil(states.length / group);
  if (!cells) return;
  let size = Math.min(20, Math.floor(Math.sqrt((width * height) / cells)));
  while (size > 2 && Math.ceil(cells / Math.floor(width / size)) * size > height) size -= 1;
  const columns = Math.floor(width / size);
  const gap = size > 5 ? 2 : 1;
  for (let cell = 0; cell < cells; cell += 1) {
    const part = states.slice(cell * group, (cell + 1) * group);
    const state = "shc".split("").find((letter) => part.includes(letter)) || "f";
    pen.fillStyle = color[state];
    pen.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - gap, size - gap);
  }
}

export function countStates(states) {
  const counts = { f: 0, h: 0, s: 0, c: 0 };
  for (const state of states) counts[state] += 1;
  return counts;
}
