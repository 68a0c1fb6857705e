#!/bin/bash
# One run on all the GPUs of one node, from the course's folder: sbatch slurm/one_node.sh run.json
# run.json holds one run, as in the README; its world_size may be left out. Each rank prints its result as JSON.
#SBATCH --job-name=labs
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=00:30:00
set -euo pipefail

ranks=${SLURM_GPUS_ON_NODE:-2} # without GPUs: two ranks on the CPU
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-2} / ranks > 0 ? ${SLURM_CPUS_PER_TASK:-2} / ranks : 1))
srun .venv/bin/torchrun --standalone --nproc-per-node="$ranks" -m labs_utils.workers.zero "$1"
