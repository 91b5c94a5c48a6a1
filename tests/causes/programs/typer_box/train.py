import typer
app = typer.Typer()

@app.command()
def main(scheduler: str = "cosin"):
    if scheduler not in {"cosine", "linear"}:
        raise ValueError(f"unknown scheduler {scheduler!r}")
app()
