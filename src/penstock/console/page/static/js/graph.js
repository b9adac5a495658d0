// The graph as SVG: boxes are buttons that the arrow keys walk along the edges. It can be moved and scaled.
// @ts-check
/** @import { Box, EdgeLine, Facts, GraphEdge, GraphNode } from "../../types" */
/** @import { ComponentChildren } from "preact" */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { BOX, curve, layoutOf } from "./layout.js";
import { duration, many, rate } from "./format.js";
import { kindSign, shape } from "./marks.js";
import { fitting } from "./text-width.js";
import { roomIn, useView } from "./view.js";

/** @type {Record<string, string>} */
const KINDS = { table: "table", http: "HTTP", topic: "topic", query: "query", state: "state", sink: "sink" };

/** @typedef {{ rank: number, text: string }} NumberText */

/**
 * The numbers of a box in their order, each with a rank: the highest is left out first where the box is too narrow.
 * @param {Facts} facts
 */
function numbers(facts) {
  /** @type {NumberText[]} */
  const parts = [];
  const add = (/** @type {number} */ rank, /** @type {string} */ text) => parts.push({ rank, text });
  if (facts.state && !["running", "idle"].includes(facts.state)) add(0, facts.state);
  if (facts.rows !== null && facts.rows !== undefined) add(1, many(facts.rows, "row"));
  else if (facts.rate !== null) add(3, `${rate(facts.rate)}/s`);
  if (facts.lagSeconds) add(1, `lag ${duration(facts.lagSeconds)}`);
  else if (facts.lagRecords) add(1, `lag ${many(facts.lagRecords, "record")}`);
  else if (facts.delay) add(4, `P99 ${duration(facts.delay)}`);
  if (facts.deadLetters) add(2, many(facts.deadLetters, "dead letter"));
  if (!parts.length) add(0, facts.state ?? facts.node.system ?? "");
  return parts;
}

/** @param {NumberText[]} parts */
const joined = (parts) => parts.map(({ text }) => text).join(" · ");

/**
 * As many of the numbers as fit: half a number would be read as another one.
 * @param {NumberText[]} parts
 * @param {number} width
 * @returns {string}
 */
function fittingNumbers(parts, width) {
  const whole = joined(parts);
  if (parts.length < 2 || fitting(whole, "numbers", width) === whole) return fitting(whole, "numbers", width);
  const highest = Math.max(...parts.map(({ rank }) => rank));
  return fittingNumbers(
    parts.filter(({ rank }) => rank !== highest),
    width,
  );
}

/**
 * @param {object} props
 * @param {Box} props.box
 * @param {Facts} props.facts
 * @param {boolean} props.chosen
 * @param {boolean} props.dimmed
 * @param {boolean} props.focusable
 * @param {(id: string) => void} props.onChoose
 * @param {(facts: Facts) => void} props.onOpen
 */
function NodeBox({ box, facts, chosen, dimmed, focusable, onChoose, onOpen }) {
  const { node, state } = facts;
  const kind = KINDS[node.kind] ?? node.kind;
  const parts = numbers(facts);
  const classes = ["box", `is-${state ?? "thing"}`, `of-${node.kind}`, chosen && "chosen", dimmed && "dimmed"]
    .filter(Boolean)
    .join(" ");
  return html`<g class=${classes} transform=${`translate(${box.x} ${box.y})`} role="button" tabindex=${focusable ? 0 : -1} data-id=${node.id}
      aria-pressed=${String(chosen)} onClick=${() => onChoose(node.id)} onDblClick=${() => onOpen(facts)}>
    <title>${`${kind} ${node.name}: ${joined(parts)}`}</title>
    <rect class="back" width=${BOX.width} height=${BOX.height} rx="8" />
    <rect class="bar" width="4" height=${BOX.height - 16} x="0" y="8" rx="2" />
    ${kindSign(node.kind, { x: 14, y: 11, width: 16, height: 16 })}
    <text class="name" x="38" y="24">${fitting(node.name, "name", BOX.width - (state ? 68 : 48))}</text>
    <text class="numbers" x="14" y="44">${fittingNumbers(parts, BOX.width - 28)}</text>
    ${state && shape(state, { x: BOX.width - 28, y: 11, width: 16, height: 16 })}
  </g>`;
}

/** @param {{ line: EdgeLine, value: number | null, lit: boolean, dimmed: boolean }} props */
function Line({ line, value, lit, dimmed }) {
  const middle = line.points[Math.floor(line.points.length / 2)];
  const flows = (value ?? 0) > 0;
  const width = 1.5 + Math.min(3, Math.log10(1 + (value ?? 0)));
  return html`<g class=${["edge", lit && "lit", dimmed && "dimmed", flows && "flows"].filter(Boolean).join(" ")}>
    <path d=${curve(line.points)} stroke-width=${width} marker-end="url(#arrow)" />
    ${flows && html`<text x=${middle.x} y=${middle.y - 5} text-anchor="middle">${rate(value)}/s</text>`}
  </g>`;
}

/** @type {(key: string, box: Box, boxes: Box[], lines: EdgeLine[]) => string | undefined} */
function neighbour(key, box, boxes, lines) {
  if (key === "ArrowRight") return lines.find((line) => line.source === box.id)?.target;
  if (key === "ArrowLeft") return lines.find((line) => line.target === box.id)?.source;
  const step = key === "ArrowDown" ? 1 : -1;
  const order = boxes.map((one) => one.id);
  const beside = boxes
    .filter((one) => Math.abs(one.x - box.x) < BOX.width / 2 && (one.y - box.y) * step > 0)
    .sort((one, other) => (one.y - other.y) * step);
  return beside[0]?.id ?? order[(order.indexOf(box.id) + step + order.length) % order.length];
}

/**
 * `facts` are by the nodes' ids; `chosen` is the id of the chosen node, or ""; `children` are its heading.
 * @param {object} props
 * @param {GraphNode[]} props.nodes
 * @param {GraphEdge[]} props.edges
 * @param {Map<string, Facts>} props.facts
 * @param {string} props.chosen
 * @param {(id: string) => void} props.onChoose
 * @param {(facts: Facts) => void} props.onOpen
 * @param {string} props.label
 * @param {ComponentChildren} [props.children]
 */
export function GraphView({ nodes, edges, facts, chosen, onChoose, onOpen, label, children }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const narrow = width < 640;
  const ids =
    nodes.map((node) => node.id).join("\n") + edges.map((edge) => `${edge.source}\t${edge.target}`).join("\n");
  const drawn = useMemo(
    () => layoutOf(width ? nodes : [], edges, { direction: narrow ? "TB" : "LR", most: roomIn(width) }),
    [ids, narrow, roomIn(width)],
  );
  const view = useView(place, drawn, width);
  const larger = drawn.width * view.k > width || drawn.height * view.k > view.height;
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    setWidth(element.clientWidth);
    return () => watcher.disconnect();
  }, []);
  const rates = new Map(edges.map((edge) => [`${edge.source}\t${edge.target}`, edge.rate ?? null]));
  const near = useMemo(
    () =>
      new Set(edges.flatMap(({ source, target }) => (source === chosen || target === chosen ? [source, target] : []))),
    [ids, chosen],
  );
  const dims = (/** @type {string} */ id) => Boolean(chosen) && near.size > 0 && !near.has(id) && id !== chosen;
  const first = drawn.boxes.some((box) => box.id === chosen) ? chosen : drawn.boxes[0]?.id;
  const press = (/** @type {KeyboardEvent} */ event) => {
    const id = event.target instanceof Element ? event.target.closest("[data-id]")?.getAttribute("data-id") : null;
    const box = drawn.boxes.find((one) => one.id === id);
    if (!box) return;
    if (event.key === "Enter" || event.key === " ") onChoose(box.id);
    else if (event.key.startsWith("Arrow")) {
      const next = neighbour(event.key, box, drawn.boxes, drawn.lines);
      const there = drawn.boxes.find((one) => one.id === next);
      if (there) view.show(there);
      const elements = /** @type {NodeListOf<SVGElement> | undefined} */ (place.current?.querySelectorAll("[data-id]"));
      [...(elements ?? [])].find((one) => one.dataset.id === next)?.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  };
  return html`<div class="graph">
    <div class="heading">${children}
      <div class="segments" role="group" aria-label="Size of the graph">
        <button type="button" class="small" onClick=${view.fit}>Fit</button>
        <button type="button" class="small" onClick=${() => view.scale(1.25)} aria-label="Larger">+</button>
        <button type="button" class="small" onClick=${() => view.scale(0.8)} aria-label="Smaller">−</button>
      </div>
    </div>
    <div class="canvas" ref=${place} style=${{ height: `${view.height}px` }} ...${view.handlers}>
      <svg width="100%" height="100%" role="group" aria-label=${label} onKeyDown=${press}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
        <g transform=${`translate(${view.x} ${view.y}) scale(${view.k})`}>
          ${drawn.lines.map(
            (
              line,
            ) => html`<${Line} key=${`${line.source}\t${line.target}`} line=${line} value=${rates.get(`${line.source}\t${line.target}`)}
            lit=${Boolean(chosen) && (line.source === chosen || line.target === chosen)} dimmed=${dims(line.source) || dims(line.target)} />`,
          )}
          ${drawn.boxes.map(
            (box) =>
              facts.has(box.id) &&
              html`<${NodeBox} key=${box.id} box=${box} facts=${facts.get(box.id)} chosen=${box.id === chosen}
            dimmed=${dims(box.id)} focusable=${box.id === first} onChoose=${onChoose} onOpen=${onOpen} />`,
          )}
        </g>
      </svg>
    </div>
    ${larger && html`<p class="quiet hint">The graph is larger than its frame: drag it, scale it with Ctrl and the wheel, or see all of it with Fit.</p>`}
  </div>`;
}
