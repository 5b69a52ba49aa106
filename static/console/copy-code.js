// A button that copies, beside each example.
const status = document.createElement("span");
status.className = "unseen";
status.setAttribute("role", "status");
document.body.append(status);

for (const example of navigator.clipboard ? document.querySelectorAll("details.code") : []) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "outline secondary copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(example.querySelector("code").textContent);
    button.textContent = status.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  example.querySelector("pre").before(button);
}
