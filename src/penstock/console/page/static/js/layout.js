// Where the boxes of the graph stand. Each connected component is laid out by itself by dagre, then the components are
// packed in rows: dagre alone puts separate chains below each other, which makes a page of thousands of pixels.
// @ts-check
/** @import { GraphEdge, GraphNode, Layout, Point } from "../../types" */
import { Graph, layout as layered } from "dagre";

export const BOX = { width: 200, height: 56 };
const GAP = 40;

/**
 * The connected components, in the order of their first nodes. Edges to unknown nodes are left out.
 * @param {GraphNode[]} nodes
 * @param {GraphEdge[]} edges
 */
export function components(nodes, edges) {
  const parent = new Map(nodes.map((node) => [node.id, node.id]));
  const above = (/** @type {string} */ id) => parent.get(id) ?? id;
  const root = (/** @type {string} */ id) => {
    let at = id;
    while (above(at) !== at) {
      parent.set(at, above(above(at)));
      at = above(at);
    }
    return at;
  };
  const known = edges.filter((edge) => parent.has(edge.source) && parent.has(edge.target));
  for (const edge of known) parent.set(root(edge.target), root(edge.source));
  /** @type {Map<string, { nodes: GraphNode[], edges: GraphEdge[] }>} */
  const found = new Map();
  for (const node of nodes) {
    const key = root(node.id);
    const component = found.get(key) ?? { nodes: [], edges: [] };
    found.set(key, component);
    component.nodes.push(node);
  }
  for (const edge of known) found.get(root(edge.source))?.edges.push(edge);
  return [...found.values()];
}

/**
 * What dagre is told of a graph, and then says of it.
 * @typedef {{ rankdir?: string, nodesep?: number, ranksep?: number, edgesep?: number, width?: number, height?: number }} GraphLabel
 */

/**
 * @param {{ nodes: GraphNode[], edges: GraphEdge[] }} component
 * @param {"LR" | "TB"} direction
 */
function arranged({ nodes, edges }, direction) {
  /** @type {Graph<GraphLabel, { width: number, height: number, x?: number, y?: number }, { points?: Point[] }>} */
  const graph = new Graph({ multigraph: false });
  graph.setGraph({ rankdir: direction, nodesep: 20, ranksep: direction === "LR" ? 48 : 44, edgesep: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { ...BOX });
  for (const edge of edges) if (edge.source !== edge.target) graph.setEdge(edge.source, edge.target);
  layered(graph);
  const boxes = nodes.map(({ id }) => {
    const { x = 0, y = 0 } = graph.node(id);
    return { id, x: x - BOX.width / 2, y: y - BOX.height / 2 };
  });
  const lines = graph.edges().map(({ v, w }) => ({ source: v, target: w, points: graph.edge(v, w).points ?? [] }));
  const { width = 0, height = 0 } = graph.graph();
  return { boxes, lines, width: Math.max(width, BOX.width), height: Math.max(height, BOX.height) };
}

/**
 * Put rectangles in rows of at most `most` width, the highest first: the place of each.
 * @template {{ width: number, height: number }} R
 * @param {R[]} parts
 * @param {number} most
 */
function packed(parts, most) {
  /** @type {Map<R, Point>} */
  const places = new Map();
  let [x, y, row, wide] = [0, 0, 0, 0];
  for (const part of [...parts].sort((left, right) => right.height - left.height)) {
    if (x > 0 && x + part.width > most) [x, y, row] = [0, y + row + GAP, 0];
    places.set(part, { x, y });
    wide = Math.max(wide, x + part.width);
    x += part.width + GAP;
    row = Math.max(row, part.height);
  }
  return { places, size: { width: wide, height: y + row } };
}

/**
 * The layout of nodes and edges in at most `most` width, unless one component is wider. Same input, same layout, so that
 * live numbers move nothing.
 * @param {GraphNode[]} nodes
 * @param {GraphEdge[]} edges
 * @param {{ direction?: "LR" | "TB", most?: number }} [options]
 * @returns {Layout}
 */
export function layoutOf(nodes, edges, { direction = "LR", most = 1200 } = {}) {
  const parts = components(nodes, edges).map((component) => arranged(component, direction));
  const { places, size } = packed(parts, most);
  /** @type {Layout} */
  const whole = { boxes: [], lines: [], ...size };
  for (const part of parts) {
    const { x, y } = places.get(part) ?? { x: 0, y: 0 };
    const moved = (/** @type {Point} */ point) => ({ x: point.x + x, y: point.y + y });
    whole.boxes.push(...part.boxes.map((box) => ({ id: box.id, ...moved(box) })));
    whole.lines.push(...part.lines.map((line) => ({ ...line, points: line.points.map(moved) })));
  }
  return whole;
}

/** @type {(left: Point, right: Point, part: number) => Point} */
const between = (left, right, part) => ({
  x: left.x + (right.x - left.x) * part,
  y: left.y + (right.y - left.y) * part,
});

/**
 * A smooth path through points: a B-spline that starts at the first and ends at the last.
 * @param {Point[]} points
 */
export function curve(points) {
  const text = (/** @type {Point} */ { x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  if (points.length < 3) return `M${points.map(text).join("L")}`;
  let path = `M${text(points[0])}L${text(between(points[0], points[1], 1 / 6))}`;
  for (let at = 1; at < points.length; at += 1) {
    const [before, here, after] = [points[at - 1], points[at], points[at + 1] ?? points[at]];
    const end = between(between(before, here, 2 / 3), between(here, after, 1 / 3), 0.5);
    path += `C${text(between(before, here, 1 / 3))} ${text(between(before, here, 2 / 3))} ${text(end)}`;
  }
  return `${path}L${text(points[points.length - 1])}`;
}

/**
 * The ids of a node and of those one step away from any of `ids`.
 * @param {Set<string>} ids
 * @param {GraphEdge[]} edges
 */
export function around(ids, edges) {
  const near = new Set(ids);
  for (const { source, target } of edges) {
    if (ids.has(source)) near.add(target);
    if (ids.has(target)) near.add(source);
  }
  return near;
}
