// Package checkpoint reads and writes PyTorch's distributed checkpoints (DCP): folders of tensors in chunks, each a
// torch.save zip within a .distcp file, and a pickle named .metadata that says where each chunk lies.
//
// [Write] makes a folder from tensors whose bytes it pulls block by block, and [Open] reads one: by region, by whole
// tensor as a stream, or by Python object. Both plan from metadata first and move bytes after, so that memory stays
// bounded whatever the model. Nothing in a folder is trusted: pickles are read by an allow-list, sizes and paths are
// checked before use.
package checkpoint
