// Templates without a build step. Text in a template becomes a text node: nothing from outside is read as markup.
// @ts-check
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);

/**
 * A handler that takes the text of the field that has changed.
 * @param {(value: string) => void} take
 */
export const withValue =
  (take) =>
  (/** @type {Event} */ { target }) => {
    if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) take(target.value);
  };

/**
 * A handler that takes whether the box is checked.
 * @param {(checked: boolean) => void} take
 */
export const withChecked =
  (take) =>
  (/** @type {Event} */ { target }) => {
    if (target instanceof HTMLInputElement) take(target.checked);
  };
