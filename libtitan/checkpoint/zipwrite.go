package checkpoint

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// PyTorch's zip, byte for byte: stored records under "archive/", sizes and CRCs in descriptors after the data, each
// record's data at a multiple of 64 bytes, a zip64 end record always.
const (
	zipAlign   = 64
	zipFlags   = 0x0808 // sizes follow the data; names are UTF-8
	zipNoData  = 0x0800 // a record of no bytes has no descriptor
	zip64Limit = 1<<32 - 1

	localHeaderBytes = 30
	topFolder        = "archive/"
)

// zipItem is one torch.save zip whose sizes are known before its data: head, then dataBytes of the tensor (none for an
// object), then a tail that [zipItem.tail] makes when the data's CRC is known.
type zipItem struct {
	head      []byte // everything before data/0's bytes, or before the version record
	dataBytes int64
	hasData   bool
	made      bool // head is a whole zip, made elsewhere
	part      bool // a record alone: neither the version nor a directory follows
	tailBytes int64
	records   []zipRecord // those in head, and data/0
}

type zipRecord struct {
	name   string
	offset int64 // of the local header
	entry  int64 // of its entry in the directory; known of records that were read
	size   int64
	crc    uint32
}

// newZipItem lays out an item: dataBytes < 0 for an object without a storage.
func newZipItem(dataPkl []byte, dataBytes int64) zipItem {
	it := zipItem{dataBytes: max(dataBytes, 0), hasData: dataBytes >= 0}
	it.add("data.pkl", dataPkl)
	it.add(".format_version", []byte("1"))
	it.add(".storage_alignment", []byte("64"))
	it.add("byteorder", []byte("little"))
	if it.hasData {
		it.records = append(it.records, zipRecord{name: "data/0", offset: int64(len(it.head)), size: it.dataBytes})
		it.head = appendLocal(it.head, "data/0", it.dataBytes)
	}
	it.tailBytes = int64(len(it.tail(0)))
	return it
}

// size is the whole item's.
func (it *zipItem) size() int64 { return int64(len(it.head)) + it.dataBytes + it.tailBytes }

func (it *zipItem) add(name string, data []byte) {
	r := zipRecord{name: name, offset: int64(len(it.head)), size: int64(len(data)), crc: crc32.ChecksumIEEE(data)}
	it.records = append(it.records, r)
	it.head = appendLocal(it.head, name, r.size)
	it.head = append(it.head, data...)
	it.head = appendDescriptor(it.head, r)
}

// tail is what follows the data, for the CRC of the data: the descriptor, the version record, the central directory.
func (it *zipItem) tail(crc uint32) []byte {
	if it.made {
		return nil
	}
	at := int64(len(it.head)) + it.dataBytes
	records := it.records
	var b []byte
	if it.hasData {
		records = append([]zipRecord(nil), records...)
		last := &records[len(records)-1]
		last.crc = crc
		b = appendDescriptor(b, *last)
	}
	if it.part {
		return b
	}
	return appendEnd(b, at, records)
}

// newRecordItem lays out one record within a zip, whose end is written apart.
func newRecordItem(r zipRecord) zipItem {
	it := zipItem{dataBytes: r.size, hasData: true, part: true, records: []zipRecord{r}}
	it.head = appendLocalAt(nil, r.offset, r.name, r.size)
	it.tailBytes = int64(len(it.tail(0)))
	return it
}

// appendEnd appends the version record, which PyTorch insists on, and the central directory; b begins at offset at.
func appendEnd(b []byte, at int64, records []zipRecord) []byte {
	version := []byte("3\n")
	r := zipRecord{name: "version", offset: at + int64(len(b)), size: int64(len(version)), crc: crc32.ChecksumIEEE(version)}
	b = appendLocalAt(b, at, r.name, r.size)
	b = append(b, version...)
	b = appendDescriptor(b, r)
	return appendDirectory(b, at, append(slices.Clone(records), r))
}

// appendLocal appends a local header whose data then starts at a multiple of 64 bytes from the item's start.
func appendLocal(b []byte, name string, size int64) []byte { return appendLocalAt(b, 0, name, size) }

// appendLocalAt is appendLocal where b begins at an offset of the item.
func appendLocalAt(b []byte, at int64, name string, size int64) []byte {
	var zip64 []byte
	if size >= zip64Limit {
		zip64 = binary.LittleEndian.AppendUint16(zip64, 1)
		zip64 = binary.LittleEndian.AppendUint16(zip64, 16)
		zip64 = append(zip64, make([]byte, 16)...) // the sizes are in the descriptor
	}
	start := at + int64(len(b)) + localHeaderBytes + int64(len(topFolder)+len(name)+len(zip64)) + 4
	pad := int((zipAlign - start%zipAlign) % zipAlign)

	b = append(b, "PK\x03\x04\x00\x00"...)
	b = binary.LittleEndian.AppendUint16(b, recordFlags(size))
	b = append(b, make([]byte, 18)...) // method, time, date, CRC, sizes
	b = binary.LittleEndian.AppendUint16(b, uint16(len(topFolder)+len(name)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(zip64)+4+pad))
	b = append(b, topFolder...)
	b = append(b, name...)
	b = append(b, zip64...)
	b = append(b, "FB"...)
	b = binary.LittleEndian.AppendUint16(b, uint16(pad))
	for range pad {
		b = append(b, 'Z')
	}
	return b
}

func recordFlags(size int64) uint16 {
	if size == 0 {
		return zipNoData
	}
	return zipFlags
}

func appendDescriptor(b []byte, r zipRecord) []byte {
	if r.size == 0 {
		return b
	}
	b = append(b, "PK\x07\x08"...)
	b = binary.LittleEndian.AppendUint32(b, r.crc)
	if r.size >= zip64Limit {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.size))
		return binary.LittleEndian.AppendUint64(b, uint64(r.size))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(r.size))
	return binary.LittleEndian.AppendUint32(b, uint32(r.size))
}

// appendDirectory appends the central directory and the three end records; b begins at offset at of the item.
func appendDirectory(b []byte, at int64, records []zipRecord) []byte {
	start := at + int64(len(b))
	for _, r := range records {
		b = appendEntry(b, r)
	}
	end := at + int64(len(b))

	b = append(b, "PK\x06\x06"...)
	b = binary.LittleEndian.AppendUint64(b, 44)
	b = append(b, 0x1e, 0x03, 45, 0)
	b = append(b, make([]byte, 8)...) // this disk, the directory's disk
	b = binary.LittleEndian.AppendUint64(b, uint64(len(records)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(records)))
	b = binary.LittleEndian.AppendUint64(b, uint64(end-start))
	b = binary.LittleEndian.AppendUint64(b, uint64(start))

	b = append(b, "PK\x06\x07\x00\x00\x00\x00"...)
	b = binary.LittleEndian.AppendUint64(b, uint64(end))
	b = append(b, 1, 0, 0, 0) // disks

	b = append(b, "PK\x05\x06\x00\x00\x00\x00"...)
	b = binary.LittleEndian.AppendUint16(b, uint16(min(len(records), 1<<16-1)))
	b = binary.LittleEndian.AppendUint16(b, uint16(min(len(records), 1<<16-1)))
	b = binary.LittleEndian.AppendUint32(b, uint32(min(end-start, zip64Limit)))
	b = binary.LittleEndian.AppendUint32(b, uint32(min(start, zip64Limit)))
	return append(b, 0, 0) // no comment
}

// appendEntry appends a record's entry of the central directory. What does not fit 32 bits goes to a zip64 extra.
func appendEntry(b []byte, r zipRecord) []byte {
	var extra []byte
	size, offset := uint32(r.size), uint32(r.offset)
	if r.size >= zip64Limit {
		size = zip64Limit
		extra = binary.LittleEndian.AppendUint64(extra, uint64(r.size))
		extra = binary.LittleEndian.AppendUint64(extra, uint64(r.size))
	}
	if r.offset >= zip64Limit {
		offset = zip64Limit
		extra = binary.LittleEndian.AppendUint64(extra, uint64(r.offset))
	}
	if extra != nil {
		extra = append([]byte{1, 0, byte(len(extra)), 0}, extra...)
	}
	b = append(b, "PK\x01\x02\x00\x00\x00\x00"...)
	b = binary.LittleEndian.AppendUint16(b, recordFlags(r.size))
	b = append(b, make([]byte, 6)...) // method, time, date
	b = binary.LittleEndian.AppendUint32(b, r.crc)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(topFolder)+len(r.name)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(extra)))
	b = append(b, make([]byte, 10)...) // comment, disk, attributes
	b = binary.LittleEndian.AppendUint32(b, offset)
	b = append(b, topFolder...)
	b = append(b, r.name...)
	return append(b, extra...)
}
