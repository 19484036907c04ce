# Three meshes of two ranks for one small model: each planned for this machine, trained, and held to its plan.
# A mesh is its flags. Another one is one more line and a name in the list.
EXPERIMENTS += meshes
meshes.runs  = fsdp2 tp2 pp2
meshes.fsdp2 = --dp-shard 2 --local-batch-size 2
meshes.tp2   = --tp 2 --local-batch-size 4
meshes.pp2   = --pp 2 --schedule 1F1B --local-batch-size 4 --microbatches 4

# What all share: debugmodel, narrower and with a smaller vocabulary, 1,024 tokens a step.
meshes.job   = --model debugmodel --layers 4 --vocab 512 --seq-len 256 --global-batch-size 4 --steps 30 --warmup-steps 5 \
               --world-size 2 --dtype float32 --ac none
meshes.data  = --data '$(CORPUS)/strings/*.go'
