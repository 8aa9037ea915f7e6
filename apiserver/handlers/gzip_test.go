package handlers

import (
	stdgzip "compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// counter counts the bytes that are written to it.
type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// BenchmarkGzip compresses a list of Pods as upstream does and as byre does.
func BenchmarkGzip(b *testing.B) {
	var list corev1.PodList
	for i := range 1000 {
		list.Items = append(list.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i*7919),
				UID:    types.UID(fmt.Sprintf("%08x-1111-4222-8333-%012x", i*2654435761%(1<<32), i*40503)),
				Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%17)}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i%100), Containers: []corev1.Container{
				{Name: "main", Image: "registry.example/app:v1", Env: []corev1.EnvVar{{Name: "MODE", Value: "fast"}},
					TerminationMessagePath: "/dev/termination-log"},
				{Name: "side", Image: "registry.example/proxy:v2", ImagePullPolicy: corev1.PullIfNotPresent},
			}},
		})
	}
	body, err := json.Marshal(&list)
	if err != nil {
		b.Fatal(err)
	}
	upstream, err := stdgzip.NewWriterLevel(io.Discard, stdgzip.BestSpeed)
	if err != nil {
		b.Fatal(err)
	}
	ours, err := gzip.NewWriterLevel(io.Discard, gzipLevel)
	if err != nil {
		b.Fatal(err)
	}
	type writer interface {
		io.WriteCloser
		Reset(io.Writer)
	}
	for name, w := range map[string]writer{"upstream": upstream, "ours": ours} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			var sent counter
			for b.Loop() {
				sent.n = 0
				w.Reset(&sent)
				for rest := body; len(rest) > 0; {
					n := min(writeSize, len(rest))
					if _, err := w.Write(rest[:n]); err != nil {
						b.Fatal(err)
					}
					rest = rest[n:]
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(sent.n)/float64(len(body)), "sent/byte")
		})
	}
}
