package comm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
)

func TestLaunched(t *testing.T) {
	type env map[string]string
	torch := env{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n0"}
	slurm := env{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
	open := env{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
	with := func(envs ...env) env {
		all := env{}
		for _, e := range envs {
			for k, v := range e {
				all[k] = v
			}
		}
		return all
	}
	for _, c := range []struct {
		name string
		env  env
		want Launch
		err  string
	}{
		{"nothing", env{}, Launch{}, ""},
		{"mpirun", open, Launch{"mpirun", 1, 2, 1}, ""},
		{"torchrun", torch, Launch{"torchrun", 3, 8, 1}, ""},
		{"srun", slurm, Launch{"srun", 2, 4, 0}, ""},
		{"a batch script", env{"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, Launch{}, ""},
		{"srun with an address", with(slurm, env{"MASTER_ADDR": "n0"}), Launch{"srun", 2, 4, 0}, ""},
		{"mpirun in Slurm", with(slurm, open), Launch{"mpirun", 1, 2, 1}, ""},
		{"torchrun in Slurm", with(slurm, torch), Launch{"torchrun", 3, 8, 1}, ""},
		{"two that agree", with(open, env{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n0"}), Launch{"mpirun", 1, 2, 1}, ""},
		{"two that do not", with(open, torch), Launch{}, "mpirun says rank 1 of 2, torchrun says rank 3 of 8"},
		{"half", env{"WORLD_SIZE": "2", "RANK": "0"}, Launch{}, "half of torchrun's variables are set: LOCAL_RANK, MASTER_ADDR missing"},
		{"half of Slurm's", env{"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, Launch{}, "half of srun's variables are set: SLURM_STEP_NUM_TASKS, SLURM_LOCALID missing"},
		{"no number", with(torch, env{"RANK": "x"}), Launch{}, `RANK="x": torchrun's variable must be a number from 0 to 7, since WORLD_SIZE is 8`},
		{"negative", with(torch, env{"RANK": "-1"}), Launch{}, `RANK="-1": torchrun's variable must be a number from 0 to 7, since WORLD_SIZE is 8`},
		{"too high", with(torch, env{"RANK": "8"}), Launch{}, `RANK="8": torchrun's variable must be a number from 0 to 7, since WORLD_SIZE is 8`},
		{"no ranks", with(torch, env{"WORLD_SIZE": "0"}), Launch{}, `WORLD_SIZE="0": torchrun's variable must be a number from 1 to 1048576`},
		{"too many ranks", with(torch, env{"WORLD_SIZE": "99999999999999999999"}), Launch{}, `WORLD_SIZE="99999999999999999999": torchrun's variable must be a number from 1 to 1048576`},
		{"a machine's ranks", with(torch, env{"LOCAL_WORLD_SIZE": "2"}), Launch{"torchrun", 3, 8, 1}, ""},
		{"beyond them", with(torch, env{"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}), Launch{}, `LOCAL_RANK="2": torchrun's variable must be a number from 0 to 1, since LOCAL_WORLD_SIZE is 2`},
		{"beyond the rank", with(torch, env{"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "8"}), Launch{}, `LOCAL_RANK="4": torchrun's variable must be a number from 0 to 3, since RANK is 3`},
		{"a machine of more than all", with(torch, env{"LOCAL_WORLD_SIZE": "9"}), Launch{}, `LOCAL_WORLD_SIZE="9": torchrun's variable must be a number from 1 to 8, since WORLD_SIZE is 8`},
		{"Slurm's", with(slurm, env{"SLURM_LOCALID": "3"}), Launch{}, `SLURM_LOCALID="3": srun's variable must be a number from 0 to 2, since SLURM_PROCID is 2`},
		{"Open MPI's", with(open, env{"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}), Launch{}, `OMPI_COMM_WORLD_LOCAL_RANK="1": mpirun's variable must be a number from 0 to 0, since OMPI_COMM_WORLD_LOCAL_SIZE is 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Launched(func(k string) string { return c.env[k] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, int(exit.Usage), exit.Code(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
