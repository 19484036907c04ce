package arrowfile

import (
	"encoding/binary"
	"errors"
)

// The Arrow module believes the vector lengths in the metadata of a message, and recurses as deep as it says. The
// check here walks the parts that it allocates or recurses by (Arrow's format/Message.fbs and Schema.fbs), so that a
// broken file cannot take the process down.

// Slots of the tables, in the order of the .fbs files.
const (
	messageHeaderType, messageHeader                            = 1, 2
	schemaFields, schemaMetadata                                = 1, 2
	fieldTypeType, fieldType, fieldChildren, fieldMetadata      = 2, 3, 5, 6
	unionTypeIDs                                                = 1
	headerSchema, typeUnion, typeBinaryView, typeUtf8View  byte = 1, 14, 23, 24
)

const maxFieldDepth = 64 // the Arrow module's own limit for data

var errMetadata = errors.New("the metadata of a message is broken")

// flatbuffer is FlatBuffers data that is not trusted: what lies outside b reads as zero and is remembered in err.
type flatbuffer struct {
	b      []byte
	fields int // still allowed: shared children could make a walk exponential
	err    error
}

// checkMessage reports what would be dangerous in the metadata of a message.
func checkMessage(meta []byte) error {
	f := &flatbuffer{b: meta, fields: len(meta) / 4}
	message := f.follow(0)
	if f.byte(f.slot(message, messageHeaderType)) != headerSchema {
		return f.err
	}
	schema := f.follow(f.slot(message, messageHeader))
	f.vector(f.slot(schema, schemaMetadata))
	start, n := f.vector(f.slot(schema, schemaFields))
	for i := range n {
		f.checkField(f.follow(start+4*i), 0)
	}
	return f.err
}

func (f *flatbuffer) checkField(field, depth int) {
	f.fields--
	if f.fields < 0 || depth > maxFieldDepth {
		f.err = errMetadata
	}
	if f.err != nil {
		return
	}
	switch f.byte(f.slot(field, fieldTypeType)) {
	case typeUnion:
		f.vector(f.slot(f.follow(f.slot(field, fieldType)), unionTypeIDs))
	case typeBinaryView, typeUtf8View: // the number of their buffers is another length that is believed
		f.err = errors.New("columns of view types are not supported")
	}
	f.vector(f.slot(field, fieldMetadata))
	start, n := f.vector(f.slot(field, fieldChildren))
	for i := range n {
		f.checkField(f.follow(start+4*i), depth+1)
	}
}

// take is n bytes at position at.
func (f *flatbuffer) take(at, n int) []byte {
	if at < 0 || at > len(f.b)-n {
		f.err = errMetadata
		return make([]byte, n)
	}
	return f.b[at : at+n]
}

// byte is a scalar; 0, the default, where at is 0.
func (f *flatbuffer) byte(at int) byte {
	if at == 0 {
		return 0
	}
	return f.take(at, 1)[0]
}

// follow is the position that an offset at position at points to.
func (f *flatbuffer) follow(at int) int {
	return at + int(binary.LittleEndian.Uint32(f.take(at, 4)))
}

// slot is the position of a table's field, 0 where the table leaves it out. A table starts with the distance back to
// its vtable: two sizes, then the place of each field.
func (f *flatbuffer) slot(table, slot int) int {
	vtable := table - int(int32(binary.LittleEndian.Uint32(f.take(table, 4))))
	size := int(binary.LittleEndian.Uint16(f.take(vtable, 2)))
	if 4+2*slot+2 > size {
		return 0
	}
	offset := int(binary.LittleEndian.Uint16(f.take(vtable+4+2*slot, 2)))
	if offset == 0 {
		return 0
	}
	return table + offset
}

// vector is the first element and the length of the vector of four-byte elements that the field at position at holds.
func (f *flatbuffer) vector(at int) (start, n int) {
	if at == 0 {
		return 0, 0
	}
	start = f.follow(at)
	n = int(binary.LittleEndian.Uint32(f.take(start, 4)))
	if n > (len(f.b)-start)/4 {
		f.err = errMetadata
		n = 0
	}
	return start + 4, n
}
