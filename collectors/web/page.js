"use strict";
// What a person has opened stays open when the page reloads itself.
const key = "oncewatch-open";
const open = new Set(JSON.parse(sessionStorage.getItem(key) || "[]"));
for (const d of document.querySelectorAll("details[id]")) {
  if (open.has(d.id)) d.open = true;
  d.addEventListener("toggle", () => {
    if (d.open) open.add(d.id); else open.delete(d.id);
    sessionStorage.setItem(key, JSON.stringify([...open]));
  });
}
