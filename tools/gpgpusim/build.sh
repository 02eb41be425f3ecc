#!/bin/sh
# Builds GPGPU-Sim, an oracle for counts, in a folder outside of this tree:
#
#     sh tools/gpgpusim/build.sh DIR [REPOSITORY]        then: export FUSIOND_GPGPUSIM=DIR
#
# REPOSITORY is a clone of accel-sim/gpgpu-sim_distribution that is used instead of GitHub's. What has to be there:
# git, g++ 12, make, python3 with pip, and (Debian) flex bison xutils-dev zlib1g-dev libglu1-mesa-dev libboost-dev.
# The headers are those of CUDA 11.8, from PyPI; no compiler of CUDA's is run, but the build asks for its version.
set -eu

DIR=${1:?usage: sh tools/gpgpusim/build.sh DIR [REPOSITORY]}
FROM=${2:-https://github.com/accel-sim/gpgpu-sim_distribution}
COMMIT=667834cf

for tool in git g++ make python3 flex bison makedepend; do
    command -v "$tool" >/dev/null || { echo "$tool is missing; this script's head says what is needed" >&2; exit 1; }
done
[ -d "$DIR/.git" ] || git clone --quiet "$FROM" "$DIR"
cd "$DIR"
git checkout --quiet "$COMMIT"

mkdir -p cuda/bin
python3 -m pip install --quiet --no-deps --target cuda/wheels \
    nvidia-cuda-runtime-cu11==11.8.89 nvidia-cuda-nvcc-cu11==11.8.89 nvidia-cuda-profiler-api-cu11==11.8.86
for part in cuda/wheels/nvidia/*/; do cp -R "$part". cuda/; done
[ -e cuda/lib64 ] || ln -s lib cuda/lib64
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' > cuda/bin/nvcc
chmod +x cuda/bin/nvcc

export CUDA_INSTALL_PATH="$PWD/cuda"
bash -c 'source setup_environment release && make'
ls lib/*/*/release/libcudart.so
