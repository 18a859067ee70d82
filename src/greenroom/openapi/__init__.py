"""HTTP APIs as tools: a document (OpenAPI 3, Swagger 2.0) or tools written by hand become operations, whose arguments
become requests and whose answers become results. Pure: nothing here opens a file, a connection or a clock.

Three decisions shape it. Nothing is expanded: a document is decoded once into plain dicts, its operations are named at
once, and whatever else an operation says is looked up when somebody asks for it, because a schema in a large document
costs more than all names together. Nothing is invented: what a document leaves undefined is written as most servers
read it, at one place each, and said there. And one bad corner never refuses a document: the operation concerned is left
out, or loses a part, with a note. (Libraries that read documents into models refuse whole documents and take seconds
for what takes milliseconds here; measured.)

What comes from the document is never trusted with where a request goes. The base URL is the caller's, references to
files and URLs are not followed, and an argument cannot leave its place in the URL or in a header.

Other rooms may import:

* `document`: `read_document`: the operations of a document, its declared servers and security schemes
* `operation`: `Operation`: its name, annotations, schemas and arguments
* `inputs`: `Given`: what a configuration sends with each request, and no caller may say
* `request`: `build_request`: arguments as an `HttpRequest`; `ArgumentError` names the one that is wrong
* `answer`: `to_result`: an HTTP answer as the result of a tool
* `http_tools`: `read_tools`: tools written by hand as operations
* `filters`: `chosen`: which operations are tools
"""
