// Where the boxes of the graph stand. Each connected component is laid out by itself by dagre, then the components are
// packed in rows: dagre alone puts separate chains below each other, which makes a page of thousands of pixels.
import { Graph, layout as layered } from "dagre";

export const BOX = { width: 200, height: 56 };
const GAP = 40;

/** The connected components: [{nodes, edges}], in the order of their first nodes. Edges to unknown nodes are left out. */
export function components(nodes, edges) {
  const parent = new Map(nodes.map((node) => [node.id, node.id]));
  const root = (id) => {
    let at = id;
    while (parent.get(at) !== at) {
      parent.set(at, parent.get(parent.get(at)));
      at = parent.get(at);
    }
    return at;
  };
  const known = edges.filter((edge) => parent.has(edge.source) && parent.has(edge.target));
  for (const edge of known) parent.set(root(edge.target), root(edge.source));
  const found = new Map();
  for (const node of nodes) {
    const key = root(node.id);
    if (!found.has(key)) found.set(key, { nodes: [], edges: [] });
    found.get(key).nodes.push(node);
  }
  for (const edge of known) found.get(root(edge.source)).edges.push(edge);
  return [...found.values()];
}

function arranged({ nodes, edges }, direction) {
  const graph = new Graph({ multigraph: false });
  graph.setGraph({ rankdir: direction, nodesep: 20, ranksep: direction === "LR" ? 48 : 44, edgesep: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { ...BOX });
  for (const edge of edges) if (edge.source !== edge.target) graph.setEdge(edge.source, edge.target);
  layered(graph);
  const boxes = nodes.map((node) => ({
    id: node.id,
    x: graph.node(node.id).x - BOX.width / 2,
    y: graph.node(node.id).y - BOX.height / 2,
  }));
  const lines = graph.edges().map(({ v, w }) => ({ source: v, target: w, points: graph.edge(v, w).points }));
  const { width, height } = graph.graph();
  return { boxes, lines, width: Math.max(width, BOX.width), height: Math.max(height, BOX.height) };
}

/** Put rectangles in rows of at most `most` width, the highest first: sets x and y of each. */
function packed(parts, most) {
  let [x, y, row, wide] = [0, 0, 0, 0];
  for (const part of [...parts].sort((left, right) => right.height - left.height)) {
    if (x > 0 && x + part.width > most) [x, y, row] = [0, y + row + GAP, 0];
    [part.x, part.y] = [x, y];
    x += part.width + GAP;
    row = Math.max(row, part.height);
    wide = Math.max(wide, part.x + part.width);
  }
  return { width: wide, height: y + row };
}

/**
 * The layout of nodes and edges in at most `most` width, unless one component is wider: {boxes: [{id, x, y}], lines: [{source, target,
 * points: [{x, y}]}], width, height}. Same input, same layout, so that live numbers move nothing.
 */
export function layoutOf(nodes, edges, { direction = "LR", most = 1200 } = {}) {
  const parts = components(nodes, edges).map((component) => arranged(component, direction));
  const size = packed(parts, most);
  const moved = ({ x, y }, part) => ({ x: x + part.x, y: y + part.y });
  return {
    boxes: parts.flatMap((part) => part.boxes.map((box) => ({ id: box.id, ...moved(box, part) }))),
    lines: parts.flatMap((part) =>
      part.lines.map((line) => ({ ...line, points: line.points.map((point) => moved(point, part)) })),
    ),
    ...size,
  };
}

/** A smooth path through points: a B-spline that starts at the first and ends at the last. */
export function curve(points) {
  const text = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  if (points.length < 3) return `M${points.map(text).join("L")}`;
  const mix = (left, right, part) => ({ x: left.x + (right.x - left.x) * part, y: left.y + (right.y - left.y) * part });
  let path = `M${text(points[0])}L${text(mix(points[0], points[1], 1 / 6))}`;
  for (let at = 1; at < points.length; at += 1) {
    const [before, here, after] = [points[at - 1], points[at], points[at + 1] ?? points[at]];
    const end = mix(mix(before, here, 2 / 3), mix(here, after, 1 / 3), 0.5);
    path += `C${text(mix(before, here, 1 / 3))} ${text(mix(before, here, 2 / 3))} ${text(end)}`;
  }
  return `${path}L${text(points.at(-1))}`;
}

/** The ids of a node and of those one step away from any of `ids`. */
export function around(ids, edges) {
  const near = new Set(ids);
  for (const { source, target } of edges) {
    if (ids.has(source)) near.add(target);
    if (ids.has(target)) near.add(source);
  }
  return near;
}
