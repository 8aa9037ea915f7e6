package endpoints

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

const (
	// writeSize is how much is gathered before it is written.
	writeSize = 32 * 1024
	// gzipThreshold is the size from which an answer is compressed for those who
	// take it, as upstream has it.
	gzipThreshold = 128 * 1024
	// keepBuffer bounds the buffers that are kept for the next answer: one that
	// had to hold a huge object is not worth its memory.
	keepBuffer = 256 * 1024
)

// answerWriter writes an answer that is made bit by bit. What is appended to buf
// goes out by flush, whenever it is enough, and by close. Nothing is sent, not
// even a status, before the first of it is.
type answerWriter struct {
	w         http.ResponseWriter
	req       *http.Request
	mediaType string
	buf       []byte

	threshold int       // what must be in buf before the first byte is sent
	out       io.Writer // nil before that
	gzip      *compressor
	err       error
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// takeBuffer returns an empty buffer; giveBuffer takes it back. The caller must
// have let go of it.
func takeBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

func giveBuffer(buf []byte) {
	if cap(buf) <= keepBuffer {
		buffers.Put(&buf)
	}
}

func newAnswerWriter(w http.ResponseWriter, req *http.Request, mediaType string) *answerWriter {
	j := &answerWriter{w: w, req: req, mediaType: mediaType, buf: takeBuffer(), threshold: writeSize}
	if acceptsGzip(req) {
		// Whether to compress is decided by what there is to send.
		j.threshold = gzipThreshold
	}
	return j
}

func acceptsGzip(req *http.Request) bool {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) {
		return false
	}
	for token := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}

// started says whether anything has been sent.
func (j *answerWriter) started() bool { return j.out != nil }

// flush sends what is gathered, if it is enough to be worth it.
func (j *answerWriter) flush() {
	if len(j.buf) >= writeSize && (j.started() || len(j.buf) > j.threshold) {
		j.send()
	}
}

// close sends the rest. A client that has gone away is not reported: there is
// nobody to report it to.
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
		j.gzip = takeCompressor(j.w)
		j.out = j.gzip
	}
	header.Set("Content-Type", j.mediaType)
	j.w.WriteHeader(http.StatusOK)
}

// release gives the writer's memory back. It must be called, also after an
// error, and nothing else after it.
func (j *answerWriter) release() {
	buf := j.buf
	j.buf = nil
	giveBuffer(buf)
	if j.gzip != nil {
		giveCompressor(j.gzip)
		j.gzip = nil
	}
}
