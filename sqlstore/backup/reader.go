package backup

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
)

// reader reads lines and sums them up.
type reader struct {
	decompressor *zstd.Decoder
	lines        *bufio.Reader
	sum          hash.Hash
	// skipObjects leaves out the lines of objects, and counts them in skipped.
	skipObjects bool
	skipped     int64
	// long has a line that is longer than the buffer of lines.
	long []byte
}

var objectPrefix = []byte(`{"object":`)

func (r *reader) close() { r.decompressor.Close() }

// next decodes the next line. The sum of the end is checked here, where what comes
// before it is known.
func (r *reader) next() (line, error) {
	for {
		text, err := r.read()
		if err != nil {
			return line{}, err
		}
		if r.skipObjects && bytes.HasPrefix(text, objectPrefix) {
			r.skipped++
			r.sum.Write(text)
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return line{}, fmt.Errorf("%w: %w", sqlstore.ErrBroken, err)
		}
		if l.End != nil && l.End.SHA256 != hex.EncodeToString(r.sum.Sum(nil)) {
			return line{}, fmt.Errorf("%w: the checksum is wrong", sqlstore.ErrBroken)
		}
		r.sum.Write(text)
		return l, nil
	}
}

// read returns the bytes of the next line, which are valid until the next call.
func (r *reader) read() ([]byte, error) {
	text, err := r.lines.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, readError(err)
	}
	r.long = append(r.long[:0], text...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(r.long) > maxLine {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", sqlstore.ErrBroken, maxLine)
		}
		text, err = r.lines.ReadSlice('\n')
		r.long = append(r.long, text...)
	}
	return r.long, readError(err)
}

// readError tells what is wrong with the backup from what is wrong with the file.
func readError(err error) error {
	var file interface{ Timeout() bool } // of *os.PathError, and of the network's
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it is truncated", sqlstore.ErrBroken)
	case errors.As(err, &file):
		return fmt.Errorf("read backup: %w", err)
	}
	return fmt.Errorf("%w: %w", sqlstore.ErrBroken, err) // zstd's
}

// end fails unless nothing follows on the last line.
func (r *reader) end() error {
	switch _, err := r.lines.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return readError(err)
	}
	return fmt.Errorf("%w: something follows on its end", sqlstore.ErrBroken)
}
