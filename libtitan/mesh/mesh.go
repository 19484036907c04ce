// Package mesh names the axes of a device mesh, as torchtitan does. The manifest says how many ranks lie along each,
// package placement which rank lies where.
package mesh

// The axes. Those of experts, ep, are no others: it reuses the ranks of dp_shard, cp and tp.
const (
	PP          = "pp"
	DPReplicate = "dp_replicate"
	DPShard     = "dp_shard"
	CP          = "cp"
	TP          = "tp"
)

// Order is the order of the axes, slowest first: ranks next to each other differ in tp.
func Order() []string { return []string{PP, DPReplicate, DPShard, CP, TP} }
