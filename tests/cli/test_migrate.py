"""`rallypoint migrate`: lines of other launchers become lines of Rallypoint."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.one_agent import ended, started

from rallypoint.cli.launch.options import LAUNCH
from rallypoint.cli.main import main
from rallypoint.cli.migrate import launchers
from rallypoint.cli.migrate.words import split
from rallypoint.cli.options import RUN
from rallypoint.cli.parser import parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migrate.md").read_text()
SAME = {
    "torchrun --nproc_per_node=8 train.py --lr 1": "run --nproc_per_node=8 train.py --lr 1",
    "OMP_NUM_THREADS=4 /opt/bin/torchrun -m pkg.train": "OMP_NUM_THREADS=4 run -m pkg.train",
    "nohup torchrun t.py > log 2>&1 &": "nohup run t.py > log 2>&1 &",
    "torchrun t.py 2>&1 | tee log": "run t.py 2>&1 | tee log",
    "uv run torchrun --nproc-per-node $(nvidia-smi -L | wc -l) t.py": (
        "uv run run --nproc-per-node $(nvidia-smi -L | wc -l) t.py"
    ),
    "torchrun --nnodes=$N --rdzv_id $ID --rdzv-endpoint=\"$HEAD:29500\" t.py --x '$y' $z": (
        "run --nnodes=$N --rdzv_id $ID --rdzv-endpoint=\"$HEAD:29500\" t.py --x '$y' $z"
    ),
    "torchrun --nproc-per-node 2 $SCRIPT --lr 1": "run --nproc-per-node 2 $SCRIPT --lr 1",
    "python3 -u -m torch.distributed.run --standalone t.py": "run --standalone t.py",
    "python -m torch.distributed.launch --nproc_per_node=2 t.py a": (
        "run --nproc_per_node=2 t.py '--local-rank=${local_rank}' a"
    ),
    "python -m torch.distributed.launch --nproc_per_node=2 --use_env t.py a": (
        "run --nproc_per_node=2 --use_env t.py a"
    ),
    "torchrun --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint e:2379 --rdzv-id 3 t.py": (
        "run --nnodes 2 --rdzv-backend etcd --rdzv-endpoint e:2379 --rdzv-id 3 t.py"
    ),
    "torchrun ${ARGS[@]} t.py ${MORE[@]}": "run ${ARGS[@]} t.py ${MORE[@]}",
    "ft_launcher --ft-rank_heartbeat_timeout 450 --ft-restart-policy any-failed t.py": (
        "run --hang-timeout 450 t.py"
    ),
    "horovodrun -np 8 -H node-a:4,node-b:4 --verbose python train.py": (
        "launch --hosts node-a:4,node-b:4 train.py"
    ),
    "horovodrun -np 4 -H localhost:4 python train.py": "run --nproc-per-node 4 train.py",
    "horovodrun -np 4 --min-np 2 --max-np 4 -H a:2,b:2 python -m pkg.train": (
        "launch --hosts a:2,b:2 --nodes 1:2 -m pkg.train"
    ),
    "horovodrun -np 2 -H a,b -p 2222 --network-interface eth0 --start-timeout 60 python t.py": (
        "launch --ssh 'ssh -p 2222' --env NCCL_SOCKET_IFNAME=eth0 --env GLOO_SOCKET_IFNAME=eth0 "
        "--rdzv-conf join_timeout=60 --hosts a,b --nproc-per-node 1 t.py"
    ),
    "deepspeed --hostfile=hosts --num_nodes 2 --num_gpus 8 --master_port 29501 t.py --deepspeed": (
        "launch --nodes 2 --store-port 29501 --hostfile hosts --nproc-per-node 8 t.py "
        "'--local_rank=${local_rank}' --deepspeed"
    ),
    "deepspeed --hostfile hosts --exclude worker-2@worker-3 --no_local_rank --module pkg.t": (
        "launch -m --exclude worker-2,worker-3 --hostfile hosts pkg.t"
    ),
    "deepspeed --no_local_rank t.py": "run --nproc-per-node gpu t.py",
    "deepspeed --no_ssh --num_nodes 2 --node_rank=$R --master_addr=h0 --no_local_rank t.py": (
        "run --node-rank $R --nnodes 2 --master-addr h0 --master-port 29500 --nproc-per-node gpu "
        "t.py"
    ),
    "mpirun -np 4 ./a.out --x": "run --nproc-per-node 4 --no-python ./a.out --x",
    "mpirun python train.py": "run --nproc-per-node cpu train.py",
    "mpirun -x A=1 -x B -np 2 nohup t": "A=1 run --nproc-per-node 2 --no-python nohup t",
    'nohup mpirun -np 4 -x OUT="$DIR/x y" python t.py': (
        'OUT="$DIR/x y" nohup run --nproc-per-node 4 t.py'
    ),
    "mpirun --hostfile hosts -N 8 --allow-run-as-root /opt/env/bin/python train.py": (
        "launch --hostfile hosts --nproc-per-node 8 --env PYTHON_EXEC=/opt/env/bin/python train.py"
    ),
    "mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -mca btl ^openib python t.py": (
        "launch --env NCCL_DEBUG=INFO --env LD_LIBRARY_PATH --hosts a:8,b:8 t.py"
    ),
    "mpirun --map-by ppr:4:node -np 8 --host a,b ./t.py": (
        "launch --hosts a,b --nproc-per-node 4 ./t.py"
    ),
    "mpiexec -n 8 -ppn 4 -hosts a,b -genv OMP_NUM_THREADS 4 -wdir /data bash run.sh": (
        "launch --env OMP_NUM_THREADS=4 --chdir /data --hosts a,b --nproc-per-node 4 --no-python "
        "bash run.sh"
    ),
    "mpiexec.hydra -f hosts -n 8 -ppn 4 ./train.py": (
        "launch --hostfile hosts --nproc-per-node 4 --nodes 2 ./train.py"
    ),
    "srun -N2 -n16 --gres=gpu:8 -p gpu --exclusive python train.py": (
        "srun --gres=gpu:8 -p gpu --exclusive --nodes 2 --ntasks-per-node 1 "
        "run --nproc-per-node 8 train.py"
    ),
    "srun --ntasks-per-node=8 --nodes=$N --cpus-per-task=4 -l python -u train.py": (
        "srun -l --nodes $N --ntasks-per-node 1 --cpus-per-task 32 run --nproc-per-node 8 train.py"
    ),
    "srun -n 16 --ntasks-per-node 8 --gpus-per-task 1 python train.py": (
        "srun --nodes 2 --ntasks-per-node 1 --gpus-per-node 8 run --nproc-per-node 8 train.py"
    ),
    "srun -N 4 torchrun --nnodes 4 --rdzv_id $RANDOM --rdzv_endpoint $head:29500 t.py": (
        "srun --nodes 4 --ntasks-per-node 1 "
        "run --nnodes 4 --rdzv_id $RANDOM --rdzv_endpoint $head:29500 t.py"
    ),
    "srun -n 4 --ntasks-per-node=1 -c 8 torchrun --nproc-per-node 8 t.py": (
        "srun --nodes 4 --ntasks-per-node 1 --cpus-per-task 8 run --nproc-per-node 8 t.py"
    ),
    "srun python train.py": "srun --ntasks-per-node 1 run train.py",
}
LACKING = {
    "horovodrun -np 4 -H a:4,b:4 --autotune python t.py": (
        "launch --hosts a:4,b:4 --nodes 1 t.py",
        ["--autotune"],
    ),
    "mpirun -np 6 -H a:4,b:4 python t.py": (
        "launch --hosts a:4,b:4 t.py",
        ["the number of processes: each host starts its slots, or --nproc-per-node; --nodes "],
    ),
    "mpirun -np $NP --hostfile hosts python t.py": (
        "launch --hostfile hosts t.py",
        ["the number of processes: each host starts its slots, or --nproc-per-node; --nodes "],
    ),
    "mpirun -np 2 -wdir /data --bind-to core python t.py": (
        "run --nproc-per-node 2 t.py",
        ["--bind-to: see --numa-binding, which", "the directory: cd /data first"],
    ),
    "mpirun -np 2 --map-by numa python t.py": (
        "run --nproc-per-node 2 t.py",
        ["--map-by numa: ranks go from host to host, in their order"],
    ),
    "ft_launcher --ft-param-initial_rank_heartbeat_timeout=1200 --ft-cfg-path c.yaml t.py": (
        "run t.py",
        [
            "--ft-param-initial_rank_heartbeat_timeout: a worker that has told no step yet never",
            "--ft-cfg-path: its file is not read: options stand for its values",
        ],
    ),
    "deepspeed --include worker-1:0,2@worker-2 --no_local_rank t.py": (
        "launch --hosts worker-1:2,worker-2 t.py",
        ["--include: slots of a hostfile, and which devices a host uses"],
    ),
    "deepspeed --hostfile hosts --exclude worker-1:0 --no_local_rank t.py": (
        "launch --hostfile hosts t.py",
        ["--exclude: single devices of a host"],
    ),
}
REFUSED = {
    "": "the line is missing; for example: rallypoint migrate 'torchrun train.py'",
    "python train.py": "python: unknown launcher; known are torchrun, torch.distributed.run, ",
    "cd x && torchrun t.py": "cd: unknown launcher; known are ",
    "accelerate launch t.py": "accelerate starts torchrun itself: rallypoint shim accelerate ... ",
    "torchrun 't.py": "a quote is not closed: 't.py",
    "torchrun --nnodes 2 t.py": "--nnodes 2: several nodes need an endpoint; start each one with",
    "torchrun --nproc-per-node two t.py": "--nproc-per-node two: needs a number, or one of ",
    "torchrun --from-2030 t.py": "--from-2030: unknown option",
    "torchrun --standalone": "the script is missing; for example: rallypoint run --nproc-per-nod",
    "horovodrun --nope 3 x": "--nope: unknown option of horovodrun: leave it out, and",
    "horovodrun -np": "-np: needs a value",
    "deepspeed": "deepspeed: the program to start is missing",
    "mpirun -np 2 ./a : -np 3 ./b": "several programs in one job (:) have no equivalent: start ",
    "mpirun -np 16 -npernode 8 python t.py": "16 processes, 8 on each node, and no hosts: give ",
    "mpirun -np 2 -H a:0,b ./t.py": "--hosts a:0,b: ",
    "srun -n 16 python t.py": "srun: the number of tasks per node is missing: give "
    "--ntasks-per-node N",
    "srun -n 4 -N 2 -c $C python t.py": "srun: --cpus-per-task: needs a number: that of all",
}


def asked(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, list[str], str]:
    """The exit code, the line that is printed, the remarks behind it, and stderr."""
    code = main(["migrate", line])
    out, err = capsys.readouterr()
    first, *others = out.splitlines() or [""]
    assert all(other.startswith("# ") for other in others), out
    return code, first, [other[2:] for other in others], err


def is_read_by_our_parser(line: str) -> bool:
    """The options are ours, and a program follows."""
    plain = re.sub(r"\$\(.*?\)", "1", line)
    found = re.search(r"rallypoint (run|launch) ([^|&>]*)", plain)
    assert found is not None, line
    words = shlex.split(re.sub(r"2$", "", found[2]))
    command = RUN if found[1] == "run" else LAUNCH
    return bool(parse(command, words, {}).words)


def ours(line: str) -> str:
    """The line as the table has it, with our name in it."""
    return re.sub(r"(^|.*? )(run|launch) (?!run )", r"\1rallypoint \2 ", line, count=1)


@pytest.mark.parametrize("line", SAME)
def test_a_line_that_says_the_same(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _, err = asked(capsys, line)
    assert (code, printed, err) == (0, ours(SAME[line]), "")
    assert is_read_by_our_parser(printed)


@pytest.mark.parametrize("line", LACKING)
def test_what_has_no_equivalent_is_said(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, remarks, err = asked(capsys, line)
    wanted, lost = LACKING[line]
    assert (code, printed, err) == (1, ours(wanted), "")
    found = [remark.partition("no equivalent: ")[2] for remark in remarks if "no equ" in remark]
    assert len(found) == len(lost)
    for one, start in zip(found, lost, strict=True):
        assert one.startswith(start)
    assert is_read_by_our_parser(printed)


@pytest.mark.parametrize("line", REFUSED)
def test_a_line_that_can_not_be_translated(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _, err = asked(capsys, line)
    assert (code, printed) == (2, "")
    assert err.startswith(f"rallypoint migrate: {REFUSED[line]}")
    assert err.count("\n") == 1 or "--nnodes 2" in line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torchrun --max-restarts 3 t.py", "--max-restarts counts the failures of the whole job"),
        ("torchrun --nnodes 2 --rdzv-endpoint h t.py", "nodes authenticate with a shared token"),
        ("torchrun --monitor-interval 5 t.py", "--monitor-interval 5 has no effect: exits are no"),
        ("torchrun ${ARGS[@]} t.py", "${ARGS[@]}: its options are ignored"),
        ("horovodrun -np 2 python t.py", "hvd.init() finds no launcher of Horovod: the program"),
        ("mpirun -np 2 ./a", "MPI_Init finds no launcher of MPI: the program reads RANK, WORLD_S"),
        ("mpirun -np 2 -mca a b ./a", "-mca: it is for MPI itself, which starts no worker"),
        ("mpirun -H a,b -np 2 ./t.py", "ssh must reach the hosts without a password, and rally"),
        ("srun python t.py", "srun starts one agent on each node, which starts the workers: the"),
        ("ft_launcher t.py", "heartbeats of RankMonitorClient are ignored: report steps by rall"),
        (
            "deepspeed t.py",
            "no hostfile: only this machine is used; DeepSpeed would read /job/hostfile",
        ),
        ("torchrun t.py --nnodes 2", "--nnodes stands behind t.py, so it belongs to the script"),
    ],
)
def test_what_is_different_is_said(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, remarks, _ = asked(capsys, line)
    assert code == 0
    assert any(remark.startswith(says) for remark in remarks), remarks


def test_words_and_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["migrate", "--", "torchrun", "a b.py", "$x", "--lr"]) == 0
    assert capsys.readouterr().out == "rallypoint run 'a b.py' '$x' --lr\n"
    text = "torchrun \\\n  --nproc-per-node 2 \\\n  train.py  # as ever\necho done\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["migrate", "-"]) == 0
    assert capsys.readouterr().out == (
        "rallypoint run --nproc-per-node 2 train.py # as ever\necho done\n"
    )


@pytest.mark.executed
def test_a_line_that_was_translated_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "mpirun -np 2 -genv GREETING 'good day' sh -c 'echo told $GREETING $RANK of $WORLD_SIZE'"
    _, printed, _, _ = asked(capsys, line)
    ours = printed.replace("rallypoint", f"{sys.executable} -m rallypoint")
    run = ended(started(tmp_path, ["sh", "-c", ours]), 0)
    assert sorted(run.told("told")) == ["good day 0 of 2", "good day 1 of 2"]


@given(st.lists(st.text(st.characters(exclude_characters="\0\r"), min_size=1)))
def test_words_are_those_of_a_shell(texts: list[str]) -> None:
    words, tail = split(shlex.join(texts))
    assert ([word.text for word in words], tail) == (texts, "")
    assert not any(word.varies for word in words)
    assert shlex.split(" ".join(word.raw for word in words)) == texts


def test_each_option_of_ours_in_the_tables_is_one() -> None:
    known = RUN.options.keys() | LAUNCH.options.keys() | {"-m"}
    for rows in launchers.OPTIONS.values():
        for name, row in rows.items():
            targets = row.to.split(";") if row.to and row.to[0] != "@" else []
            assert {target.partition(" ")[0] for target in targets} <= known, name
            assert 0 <= row.values <= 2


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^\$ rallypoint migrate '(.*)'\n((?:[^`\n].*\n)+)", PAGE, re.MULTILINE)
    assert len(shown) >= 5
    for line, output in shown:
        main(["migrate", line.replace("'\\''", "'")])
        assert capsys.readouterr().out == output
