import asyncio

async def push(server):
    await asyncio.sleep(0.01)
    error = ConnectionResetError(f"parameter server {server} closed the connection")
    error.add_note("while pushing the gradients of step 812")
    raise error

async def heartbeat():
    while True:
        await asyncio.sleep(1)

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(push("10.0.0.7"))
        group.create_task(heartbeat())

asyncio.run(main())
