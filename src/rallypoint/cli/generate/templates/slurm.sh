#!/bin/bash
#SBATCH --job-name=${name}
#SBATCH --nodes=${nodes}
#SBATCH --ntasks-per-node=1      # one agent on each node; it starts the workers
#SBATCH --time=${time}
#SBATCH --partition=${partition}
#SBATCH --account=${account}
#SBATCH --gpus-per-node=${gpus}
#SBATCH --cpus-per-task=${cpus}
##SBATCH --cpus-per-task=N       # without it, Slurm may give all workers of a node one CPU  ${no_cpus?}
#SBATCH --no-kill                # when a node is lost, the job keeps the others
#SBATCH --requeue                # Slurm, and the end of this script, may start the job again
#SBATCH --open-mode=append       # what it prints then does not replace what was printed before
#SBATCH --output=${name}-%j.out

logs="$PWD/${name}-$SLURM_JOB_ID/run-${SLURM_RESTART_COUNT:-0}"
mkdir -p "$logs"

# The secret of the nodes: the token of this run alone. It opens no other job of yours, is in no
# command line and in no environment, and is removed when this script ends.
id="slurm-$SLURM_JOB_ID-run-${SLURM_RESTART_COUNT:-0}"
trap 'rm -f "$logs/token"' EXIT
(umask 077 && rallypoint token --run-id "$id" > "$logs/token") || exit
unset RALLYPOINT_TOKEN           # if sbatch has passed it on

# In an array, SLURM_JOB_ID may mean all of its jobs: squeue and scontrol need the one.
job="${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
job="${job:-$SLURM_JOB_ID}"

# When the time limit is reached. Slurm before 23.02 tells it by no variable.
end="$(squeue --noheader --jobs "$job" --format %e)"

# --no-kill, --kill-on-bad-exit=0 and --wait=0: a node or an agent that is lost does not end the
# others. Each node has a log of its own. No --signal is needed: with --stop-before each agent
# knows when to save a checkpoint and stop.
srun --no-kill --kill-on-bad-exit=0 --wait=0${cpus_option} --output "$logs/%N.log" \
    rallypoint run --rdzv-id "$id" --token-file "$logs/token"${options} \
    --stop-at "$end" --stop-before ${before} --drain-deadline ${drain} \
    --json-summary "$logs/" \
    ${command}
step=$?

# How the job has ended, whatever became of single nodes: its line, and its exit code.
rallypoint verdict "$logs"
code=$?
case "$code:$step" in
    # A mistake in the command line, which is the same the next time.
    75:2) code=2 ;;
    # The time was over, nodes were missing, or a signal (--signal) said that the job has to leave.
    # It is worth starting again. What fails by itself is not.
    ${again}) scontrol requeue "$job" ;;
esac
exit "$code"
