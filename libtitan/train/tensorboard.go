package train

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"
)

// TensorBoard writes scalars to an event file that TensorBoard shows: records framed as TFRecord does, each an
// Event of tensorflow/core/util/event.proto. It is not safe for concurrent use.
type TensorBoard struct {
	file  *os.File
	clock func() time.Time
	err   error // the first failed write
}

// Protocol buffer keys (field number << 3 | wire type) of event.proto and summary.proto.
const (
	eventWallTime    = 1<<3 | 1 // double, seconds
	eventStep        = 2 << 3   // int64
	eventFileVersion = 3<<3 | 2 // string
	eventSummary     = 5<<3 | 2 // Summary
	summaryValue     = 1<<3 | 2 // repeated Summary.Value
	valueTag         = 1<<3 | 2 // string
	valueSimple      = 2<<3 | 5 // float
)

// NewTensorBoard starts an event file in dir, which is made if it is not there. clock stamps the events.
func NewTensorBoard(dir string, clock func() time.Time) (*TensorBoard, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", clock().Unix(), host, os.Getpid())
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	t := &TensorBoard{file: file, clock: clock}
	t.write(appendBytes(t.event(), eventFileVersion, []byte("brain.Event:2")))
	if t.err != nil {
		file.Close()
		return nil, fmt.Errorf("tensorboard: %w", t.err)
	}
	return t, nil
}

// Scalar writes one point. TensorBoard holds values as float32.
func (t *TensorBoard) Scalar(tag string, step int64, value float64) error {
	point := appendBytes(nil, valueTag, []byte(tag))
	point = append(point, valueSimple)
	point = binary.LittleEndian.AppendUint32(point, math.Float32bits(float32(value)))
	event := append(t.event(), eventStep)
	event = binary.AppendUvarint(event, uint64(step))
	t.write(appendBytes(event, eventSummary, appendBytes(nil, summaryValue, point)))
	return t.err
}

// Close ends the file and reports the first error of all writes.
func (t *TensorBoard) Close() error {
	err := t.file.Close()
	if t.err == nil {
		t.err = err
	}
	return t.err
}

// event is the start of an Event: its time.
func (t *TensorBoard) event() []byte {
	seconds := float64(t.clock().UnixNano()) / 1e9
	return binary.LittleEndian.AppendUint64([]byte{eventWallTime}, math.Float64bits(seconds))
}

// write frames a record: its length, the length's checksum, the bytes, their checksum. One call, so that a reader
// never sees half of it from a run that was killed.
func (t *TensorBoard) write(record []byte) {
	if t.err != nil {
		return
	}
	frame := binary.LittleEndian.AppendUint64(nil, uint64(len(record)))
	frame = binary.LittleEndian.AppendUint32(frame, maskedCRC(frame))
	frame = append(frame, record...)
	frame = binary.LittleEndian.AppendUint32(frame, maskedCRC(record))
	_, t.err = t.file.Write(frame)
}

// maskedCRC is CRC-32C rotated and offset, as TensorFlow's lib/hash/crc32c.h has it.
func maskedCRC(b []byte) uint32 {
	crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// appendBytes appends a field of bytes with its key and length.
func appendBytes(message []byte, key byte, value []byte) []byte {
	message = binary.AppendUvarint(append(message, key), uint64(len(value)))
	return append(message, value...)
}
