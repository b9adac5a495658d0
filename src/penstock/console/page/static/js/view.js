// Which part of a drawing is seen, and how large: fitted at first, then moved by dragging and scaled by buttons or by the
// wheel with Ctrl (the wheel alone scrolls the page).
// @ts-check
/** @import { Box } from "../../types" */
/** @import { RefObject } from "preact" */
import { useEffect, useState } from "preact/hooks";

const PAD = 20;
const [SMALLEST, LARGEST, FIRST_SMALLEST] = [0.1, 2, 0.8]; // scales; at first, text stays readable
const [LOWEST, HIGHEST] = [160, 720]; // heights in pixels

/** @type {(value: number, low: number, high: number) => number} */
const clamped = (value, low, high) => Math.min(high, Math.max(low, value));

/**
 * The width of a drawing that is seen whole at first in an element of a width; in steps, so that it seldom changes.
 * @param {number} width
 */
export const roomIn = (width) => Math.floor((width - 2 * PAD) / FIRST_SMALLEST / 40) * 40;

/** @typedef {{ width: number, height: number }} Size */

/** @type {(width: number, drawn: Size, smallest: number) => { k: number, x: number, y: number, height: number }} */
function fitted(width, drawn, smallest) {
  const across = (width - 2 * PAD) / Math.max(drawn.width, 1);
  const k = clamped(Math.min(across, 1, (HIGHEST - 2 * PAD) / Math.max(drawn.height, 1)), smallest, 1);
  return {
    k,
    x: Math.max(PAD, (width - drawn.width * k) / 2),
    y: PAD,
    height: Math.round(clamped(drawn.height * k + 2 * PAD, LOWEST, HIGHEST)),
  };
}

/**
 * The seen part of a drawing in an element `width` wide, and what moves and scales it.
 * @param {RefObject<HTMLElement | null>} place
 * @param {Size} drawn
 * @param {number} width
 */
export function useView(place, drawn, width) {
  const [view, setView] = useState({ x: PAD, y: PAD, k: 1, height: LOWEST });
  const { height } = view;
  const seen = () => place.current?.clientWidth ?? width;
  const fit = (/** @type {number} */ smallest) => setView(fitted(seen(), drawn, smallest));
  useEffect(() => fit(FIRST_SMALLEST), [drawn, width]);
  const scaled = (/** @type {number} */ factor, /** @type {number} */ x, /** @type {number} */ y) =>
    setView((old) => {
      const k = clamped(old.k * factor, SMALLEST, LARGEST);
      return { ...old, k, x: x - ((x - old.x) * k) / old.k, y: y - ((y - old.y) * k) / old.k };
    });
  const wheel = (/** @type {WheelEvent} */ event) => {
    if (!place.current || (!event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    const frame = place.current.getBoundingClientRect();
    scaled(Math.exp(-event.deltaY / 300), event.clientX - frame.left, event.clientY - frame.top);
  };
  const grab = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || (event.target instanceof Element && event.target.closest("[data-id]"))) return;
    const [x, y] = [event.clientX - view.x, event.clientY - view.y];
    const move = (/** @type {PointerEvent} */ moved) =>
      setView((old) => ({ ...old, x: moved.clientX - x, y: moved.clientY - y }));
    const drop = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", drop);
      removeEventListener("pointercancel", drop);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", drop);
    addEventListener("pointercancel", drop);
  };
  /** Move a box into the seen part. */
  const show = (/** @type {Box} */ box) =>
    setView((old) => {
      const [width, right, bottom] = [seen(), 240 * old.k, 64 * old.k];
      const x = clamped(old.x, PAD - box.x * old.k, Math.max(PAD - box.x * old.k, width - PAD - box.x * old.k - right));
      const y = clamped(
        old.y,
        PAD - box.y * old.k,
        Math.max(PAD - box.y * old.k, height - PAD - box.y * old.k - bottom),
      );
      return { ...old, x, y };
    });
  const middle = () => /** @type {const} */ ([seen() / 2, height / 2]);
  return {
    ...view,
    show,
    fit: () => fit(SMALLEST),
    scale: (/** @type {number} */ factor) => scaled(factor, ...middle()),
    handlers: { onWheel: wheel, onPointerDown: grab },
  };
}
