"""The HTTP interface of a server: its routes, and its errors as JSON."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from lmkcli import __version__
from lmkcli.errors import LmkError, UsageError
from lmkcli.plugins.documents.document_folder import text_of_file
from lmkcli.plugins.serve import schema
from lmkcli.plugins.serve.answers import Answers, NotFound, json_bytes
from lmkcli.plugins.serve.batching import Busy
from lmkcli.plugins.serve.guard import Access, Guard, error_body
from lmkcli.plugins.serve.limits import MAX_DOCUMENT_QUERY
from lmkcli.plugins.serve.metrics import CONTENT_TYPE
from lmkcli.plugins.serve.schema import ErrorAnswer
from lmkcli.plugins.serve.service import SearchService
from lmkcli.plugins.serve.tools import mcp_routes
from lmkcli.plugins.serve.work import BadRequest

PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
_FILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            kind: {} for kind in ("text/plain", "application/pdf", "application/octet-stream")
        }
    }
}
_CONTRIBUTIONS = (
    "If the document has one vector: also return what each chunk contributes to its score for the query. "
    "The server encodes the document again for this."
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "Invalid values",
        401: "Wrong token",
        403: "Wrong host or origin",
        404: "Unknown name or id",
        408: "Slow body",
        413: "Large body",
        422: "Invalid request",
        503: "Too busy; try again after Retry-After seconds",
    }.items()
}


class Json(JSONResponse):
    """A JSON response. The content may be coded already."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of a JSON value."""
        return content if isinstance(content, bytes) else json_bytes(content)


def make_app(
    service: SearchService,
    access: Access | None = None,
    secret: bytes = b"",
) -> Guard:
    """Return the ASGI application of a service.

    `secret` is the key of proofs for clients on the same machine.
    """
    access = access or Access()
    answers = Answers(service)
    routes, sessions = mcp_routes(answers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service, sessions():
            yield

    app = FastAPI(
        title="lmk serve",
        version=__version__,
        description="Search, documents and embeddings of the indexes of this server.",
        docs_url=None,  # its page loads scripts from other hosts; ours is page/docs.html
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Json,
        responses=_ERRORS,
    )

    app.include_router(_search_routes(answers))
    app.include_router(_embedding_routes(answers))
    app.include_router(_status_routes(service, secret))
    for path, (name, kind) in _FILES.items():
        app.add_route(path, _file(name, kind), include_in_schema=False)
    app.router.routes.extend(routes)
    _handle_errors(app)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    return Guard(app, access, service.limits, service.metrics)


def _check_parameters(request: Request) -> None:
    """Refuse parameters that a route does not have: a filter with a wrong name must not be ignored."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    if unknown := sorted(set(request.query_params) - known):
        hint = f"use {', '.join(sorted(known))}" if known else "this path has none"
        raise BadRequest(f"unknown parameter {unknown[0][:100]!r}; {hint}")


def _search_routes(answers: Answers) -> APIRouter:
    """The routes of indexes, searches and documents."""
    router = APIRouter(default_response_class=Json, dependencies=[Depends(_check_parameters)])
    service = answers.service

    @router.get("/v1/indexes", response_model=schema.IndexesAnswer)
    async def indexes() -> Response:
        """List the indexes and rerankers."""
        current = service.indexes
        return Json(
            {
                "version": __version__,
                "indexes": current.describe(),
                "rerankers": current.rerankers,
                "note": current.note,
            }
        )

    @router.post("/v1/search", response_model=schema.SearchAnswer)
    async def search(request: schema.SearchRequest) -> Response:
        """Search for one or several queries."""
        return Json(b'{"results":[%s]}' % b",".join(await answers.search(request)))

    @router.get("/v1/search", response_model=schema.ResultAnswer)
    async def search_one(
        q: Annotated[str, Query(min_length=1, max_length=MAX_DOCUMENT_QUERY)],
        k: Annotated[int, Query(ge=1, le=1000)] = 10,
        index: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
        id_prefix: Annotated[str, Query(max_length=1000)] = "",
        where: Annotated[list[schema.Condition], Query(max_length=20)] = [],  # noqa: B006
    ) -> Response:
        """Search for one query, in the first index by default: /v1/search?q=stop+the+turbine."""
        try:
            request = schema.SearchRequest(
                query=q, k=k, index=index, id_prefix=id_prefix, where=where
            )
        except ValidationError as error:  # what no parameter alone can tell
            raise RequestValidationError(error.errors()) from None
        (result,) = await answers.search(request)
        return Json(result)

    @router.get("/v1/documents/{id:path}", response_model=schema.DocumentAnswer)
    async def document(
        id: str,  # noqa: A002 - the name in the description
        index: Annotated[str | None, Query(max_length=200)] = None,
        query: Annotated[str, Query(max_length=MAX_DOCUMENT_QUERY)] = "",
        contributions: Annotated[bool, Query(description=_CONTRIBUTIONS)] = False,
    ) -> Response:
        """Return a stored document, with the scores of its chunks for a query."""
        return Json(await answers.document(id, index, query, contributions))

    @router.get("/v1/files/{id:path}", response_class=Response, responses=_FILE_ANSWERS)
    async def file(
        id: str,  # noqa: A002 - the name in the description
        index: Annotated[str | None, Query(max_length=200)] = None,
    ) -> Response:
        """Return the file of a document: a PDF as it is, text in UTF-8, and other files as a download."""
        found = answers.file(id, index)
        if found is None:
            raise NotFound(f"there is no file of {id!r}")
        if found.suffix.lower() == ".pdf":
            return FileResponse(found, media_type="application/pdf")
        text = await asyncio.to_thread(text_of_file, found)
        if text is None:
            return FileResponse(found, media_type="application/octet-stream", filename=found.name)
        # A page or a script of the folder must not run as one of this server.
        return PlainTextResponse(text.encode("utf-8", "replace"))

    return router


def _embedding_routes(answers: Answers) -> APIRouter:
    """The routes of OpenAI's clients."""
    router = APIRouter(default_response_class=Json)
    service = answers.service

    @router.post("/v1/embeddings", response_model=schema.EmbeddingsAnswer)
    async def embeddings(request: schema.EmbeddingsRequest) -> Response:
        """Encode texts with the model of a dense index, as OpenAI's API does."""
        return Json(await answers.embeddings(request))

    @router.get("/v1/models", response_model=schema.ModelsAnswer)
    async def models() -> Response:
        """List the models for embeddings: the dense indexes."""
        served = service.indexes.served.values()
        data = [
            {"id": each.name, "object": "model", "created": 0, "owned_by": "lmk"}
            for each in served
            if each.vectors is not None
        ]
        return Json({"object": "list", "data": data})

    return router


def _status_routes(service: SearchService, secret: bytes) -> APIRouter:
    """The routes for monitoring."""
    router = APIRouter(default_response_class=Json)

    @router.get("/healthz", response_model=schema.HealthAnswer)
    async def healthz(challenge: Annotated[str, Query(max_length=100)] = "") -> Response:
        """Report that the server is up."""
        answer = {"status": "ok"}
        if challenge and secret:
            answer["proof"] = proof(secret, challenge)
        return Json(answer)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Measurements in the text format of Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return router


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """The route of a file of the page."""

    async def send(request: Request) -> Response:
        return FileResponse(PAGE / name, media_type=kind, headers={"cache-control": "no-cache"})

    return send


def proof(secret: bytes, challenge: str) -> str:
    """Return the answer to a challenge, which only a process with the secret can give."""
    return hmac.new(secret, challenge.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _handle_errors(app: FastAPI) -> None:
    """Answer errors as JSON without paths of this machine."""

    def answer(status: int, message: str, kind: str, **headers: str) -> Response:
        return Response(
            error_body(message[:1000], kind), status, media_type="application/json", headers=headers
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
        return answer(422, "; ".join(lines), "invalid_request")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return answer(error.status_code, str(error.detail), "refused", **(error.headers or {}))

    @app.exception_handler(BadRequest)
    async def wrong(request: Request, error: BadRequest) -> Response:
        return answer(400, str(error), "invalid_request")

    @app.exception_handler(NotFound)
    async def missing(request: Request, error: NotFound) -> Response:
        return answer(404, str(error), "not_found")

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return answer(503, f"{error}; try again", "busy", **{"Retry-After": "1"})

    @app.exception_handler(LmkError)
    async def failed(request: Request, error: LmkError) -> Response:
        if isinstance(error, UsageError):
            return answer(400, "this index has no such search", "invalid_request")
        return answer(503, "an index cannot answer now; try again", "busy", **{"Retry-After": "5"})
