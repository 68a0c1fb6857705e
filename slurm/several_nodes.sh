#!/bin/bash
# One run on all the GPUs of several nodes, from the course's folder: sbatch slurm/several_nodes.sh run.json
# run.json holds one run, as in the README; its world_size may be left out. Each rank prints its result as JSON.
#SBATCH --job-name=labs
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=00:30:00
set -euo pipefail

ranks=${SLURM_GPUS_ON_NODE:-2} # without GPUs: two ranks on the CPU
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-2} / ranks > 0 ? ${SLURM_CPUS_PER_TASK:-2} / ranks : 1))
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000)) # two jobs on one node need two
srun .venv/bin/torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$ranks" --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d --rdzv-endpoint="$first_node:$port" -m labs_utils.workers.zero "$1"
