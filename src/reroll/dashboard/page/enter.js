// Shows the token to the server, which remembers it in a cookie that scripts cannot read.
document.getElementById("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = document.getElementById("token").value.trim();
  const answer = await fetch("enter", { method: "POST", body: token });
  if (answer.ok) location.reload();
  else document.getElementById("wrong").hidden = false;
});
