"""What is known of servers while none of them runs: their lists, names, search, and the file on disk.

Other rooms may import:

* `definition_secrets`: what a server says of itself, without the credentials that it was given
* `entries`: `ServerEntry`: what a server listed; fingerprints of definitions and what changed in words
* `fingerprints`: what a definition means: its fingerprint, and what of it has changed, in words
* `hidden_characters`: definitions without hidden characters, and the way back to the server's spelling
* `index`: every exposed name, prompt and resource as one immutable value
* `list_pages`: a page of a list taken apart item by item, within bounds
* `meaning_model`: where the model is that finds tools by meaning, and what is missing
* `tool_vectors`: the vectors of tools, and which are nearest to a query; imports numpy and tokenizers
* `names`: which name each tool is exposed under: claims, prefixes, levels
* `namespace`: `Target`; names and resource URIs of many servers in one table, and resolving one
* `overrides`: tools renamed, hidden and filled in as the configuration says
* `quarantine`: what must not be used because it has changed, looked up for each request
* `schema_repair`: an item in a form that clients can read
* `search`: the tools that answer a query, a page at a time
* `search_file`: what search has made of tools, on disk
* `search_cache`: what search has made of tools, kept from one run to the next
* `skills`: what is wrong with the entry of a skill, and what a good one says
* `store`: the catalogue on disk or in memory, and the keys of its entries
"""
