package handlers

import (
	"io"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
)

const (
	// writeSize is how many bytes are collected before they are written.
	writeSize = 32 * 1024
	// gzipThreshold is the size in bytes above which a response is compressed for a
	// client that accepts gzip; upstream's value.
	gzipThreshold = 128 * 1024
	// maxPooledBuffer is the capacity in bytes of the largest buffer that is kept for the
	// next response.
	maxPooledBuffer = 256 * 1024
)

// answerWriter writes a response piece by piece. The caller appends to buf. flush sends
// buf if it is large enough, and close sends the rest. Nothing is sent before, not even
// the status, so that the caller can still answer with an error.
type answerWriter struct {
	w         http.ResponseWriter
	req       *http.Request
	mediaType string
	status    int // of the response
	buf       []byte

	threshold int       // the bytes that must be in buf before the first byte is sent
	out       io.Writer // nil until then
	gzip      *compressor
	err       error
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// getBuffer returns an empty buffer. The caller returns it with putBuffer, and does
// not use it afterwards.
func getBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

func putBuffer(buf []byte) {
	if cap(buf) <= maxPooledBuffer {
		buffers.Put(&buf)
	}
}

func newAnswerWriter(w http.ResponseWriter, req *http.Request, mediaType string) *answerWriter {
	j := &answerWriter{w: w, req: req, mediaType: mediaType, status: http.StatusOK, buf: getBuffer(), threshold: writeSize}
	if responsewriters.ContentEncodingSupported(req, features.APIResponseCompression) == "gzip" {
		// Whether to compress depends on the size of the response.
		j.threshold = gzipThreshold
	}
	return j
}

// started reports whether anything has been sent.
func (j *answerWriter) started() bool { return j.out != nil }

// flush sends buf if it is large enough.
func (j *answerWriter) flush() {
	if len(j.buf) >= writeSize && (j.started() || len(j.buf) > j.threshold) {
		j.send()
	}
}

// close sends the rest. It returns no error, because it fails only if the client has
// gone.
func (j *answerWriter) close() {
	j.send()
	if j.gzip != nil && j.err == nil {
		j.err = j.gzip.finish()
	}
}

func (j *answerWriter) send() {
	if !j.started() {
		j.start()
	}
	if j.err == nil {
		_, j.err = j.out.Write(j.buf)
	}
	j.buf = j.buf[:0]
}

func (j *answerWriter) start() {
	header := j.w.Header()
	j.out = j.w
	if j.threshold == gzipThreshold && len(j.buf) > gzipThreshold {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		j.gzip = getCompressor(j.w)
		j.out = j.gzip
	}
	header.Set("Content-Type", j.mediaType)
	j.w.WriteHeader(j.status)
}

// release returns the writer's buffers. The caller calls it last, also after an error.
func (j *answerWriter) release() {
	buf := j.buf
	j.buf = nil
	putBuffer(buf)
	if j.gzip != nil {
		putCompressor(j.gzip)
		j.gzip = nil
	}
}
