"""Calls a tool with the official Python SDK (`pip install mcp`): first over HTTP, then over stdio.

    cargo run &
    python3 examples/clients/client.py
"""

import asyncio

from mcp import Client, StdioServerParameters


async def greet(server):
    async with Client(server) as client:
        tools = await client.list_tools()
        print("tools:", ", ".join(tool.name for tool in tools.tools))
        result = await client.call_tool("hello", {"name": "Ada"})
        print(result.content[0].text, end="")


async def main():
    await greet("http://127.0.0.1:8080/mcp")
    await greet(StdioServerParameters(command="target/debug/orla", args=["--stdio"]))


asyncio.run(main())
