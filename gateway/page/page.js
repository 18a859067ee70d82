document.getElementById("page").textContent = "Greenroom";
