// The token of actions: taken from the address that `penstock console --allow-actions` prints, or typed. It is kept until
// the browser's tab is closed, and leaves the address at once, so that it is in no link that is passed on.
// @ts-check
const KEY = "penstock-token";

export const token = () => sessionStorage.getItem(KEY) ?? "";
/** @param {string} text */
export const setToken = (text) => sessionStorage.setItem(KEY, text.trim());

const given = /[#&?]token=([\w.~-]+)/.exec(location.hash);
if (given) {
  setToken(given[1]);
  history.replaceState(null, "", location.pathname + location.search);
}
