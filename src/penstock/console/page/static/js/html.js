// Templates without a build step. Text in a template becomes a text node: nothing from outside is read as markup.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
