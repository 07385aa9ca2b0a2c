"""Fixtures of the suite: a server that runs already, named by COTENANT_URL (http://host:port).

COTENANT_TEST_MODEL picks a model, else the first that the server lists; COTENANT_API_KEY is the server's key, where it has one.
"""

import os

import openai
import pytest

URL = os.environ.get("COTENANT_URL", "").rstrip("/")
KEY = os.environ.get("COTENANT_API_KEY", "")


def pytest_sessionstart(session):
    if not URL:
        pytest.exit("set COTENANT_URL to the address of a running server", returncode=2)


@pytest.fixture(scope="session")
def url():
    return URL


@pytest.fixture(scope="session")
def key():
    return KEY


@pytest.fixture(scope="session")
def client():
    return openai.OpenAI(base_url=URL + "/v1", api_key=KEY or "none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def model(client):
    return os.environ.get("COTENANT_TEST_MODEL") or client.models.list().data[0].id
