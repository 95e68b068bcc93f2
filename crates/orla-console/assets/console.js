// What a page can do better where scripts run. Every page works without it.
"use strict";
(() => {
  const each = (root, selector, act) => root.querySelectorAll(selector).forEach(act);

  function copied(button) {
    const text = button.closest(".snippet").querySelector("pre").textContent;
    navigator.clipboard.writeText(text).then(() => {
      const label = button.firstChild;
      const before = label.textContent;
      label.textContent = "Copied";
      setTimeout(() => { label.textContent = before; }, 1500);
    });
  }

  // A file becomes the Base64 text of its field.
  function chosen(input) {
    const file = input.files[0];
    if (!file) return;
    const reader = new FileReader();
    reader.onload = () => {
      document.getElementById(input.dataset.into).value = reader.result.slice(reader.result.indexOf(",") + 1);
    };
    reader.readAsDataURL(file);
  }

  function prepare(root) {
    if (navigator.clipboard) each(root, "[data-copy]", (button) => { button.hidden = false; });
    each(root, "[data-into]", (input) => { input.hidden = false; });
    each(root, "[data-show]", (select) => {
      const button = select.nextElementSibling;
      if (button) button.classList.add("unseen");
    });
    each(root, "[data-reload-on]", (element) => {
      if (element.dataset.watched) return;
      element.dataset.watched = "yes";
      for (const name of element.dataset.reloadOn.split(" ")) {
        element.addEventListener(name, () => location.reload());
      }
    });
  }

  // A completion takes the place of what it completes, unless that was changed since.
  function written({ write, from, to }) {
    const area = document.querySelector("[data-at]");
    if (area.selectionStart !== Number(to)) return;
    area.setRangeText(write, Number(from), Number(to), "end");
    area.focus();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copied(button);
    const offer = event.target.closest("[data-write]");
    if (offer) written(offer.dataset);
  });
  // Before the field's own listeners: what they send says where its visitor types.
  document.addEventListener("input", ({ target }) => {
    if (target.dataset.at) document.getElementById(target.dataset.at).value = target.selectionStart;
  }, true);
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-into]")) chosen(event.target);
    if (event.target.matches("[data-show]")) event.target.nextElementSibling.click();
  });
  document.addEventListener("htmx:after:swap", () => prepare(document));
  const start = () => {
    prepare(document);
    const wrong = document.querySelector("[aria-invalid=true]");
    if (wrong) wrong.focus();
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
