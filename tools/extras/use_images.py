"""An image that is too large for an answer is scaled down."""

import base64
import os
from io import BytesIO

from PIL import Image

from greenroom.gateway.exposures.result_texts import _scaled

into = BytesIO()
Image.frombytes("RGB", (900, 900), os.urandom(900 * 900 * 3)).save(into, "PNG")
data = base64.b64encode(into.getvalue()).decode()
text, kind = _scaled(data, 200_000)
assert len(text) <= 200_000 < len(data)
assert kind == "image/jpeg"
