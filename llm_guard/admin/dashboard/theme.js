// Light or dark theme: the system's until one is chosen. Runs before the page is painted, so that it does not flash.
"use strict";
(() => {
  const KEY = "llm_guard.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // no storage
    }
  };
  const chosen = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const changed = () => document.dispatchEvent(new Event("themechange"));

  if (["light", "dark"].includes(kept())) document.documentElement.dataset.theme = kept();
  system.addEventListener("change", changed);

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => {
      button.textContent = chosen() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} theme`);
    };
    name();
    document.addEventListener("themechange", name);
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = chosen() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, chosen());
      } catch {
        // applies until the page is left
      }
      changed();
    });
  });
})();
