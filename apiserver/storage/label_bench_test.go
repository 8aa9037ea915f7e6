package storage

import (
	"fmt"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"
)

// BenchmarkListByLabel lists 200 of 100,000 Pods by label, with signatures and without, and
// reports the processor time of all goroutines.
func BenchmarkListByLabel(b *testing.B) {
	const pods = 100_000
	f := podStore(b, backends()[0])
	fillLabelled(b, f, pods)
	for name, text := range map[string]string{
		"signature": "app.kubernetes.io/name=app-3",
		// A requirement with two values demands no label.
		"control": "app.kubernetes.io/name in (app-3,none)",
	} {
		b.Run(name, func(b *testing.B) {
			selector, err := labels.Parse(text)
			if err != nil {
				b.Fatal(err)
			}
			opts := storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
				Label: selector, Field: fields.Everything(), GetAttrs: podstrategy.GetAttrs,
			}}
			before := processTime(b)
			for b.Loop() {
				listPods(b, f, opts, 200)
			}
			b.ReportMetric(float64(processTime(b)-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}

// listPods makes a list and reads it. It fails unless the list has n Pods.
func listPods(b *testing.B, f *fixture, opts storage.ListOptions, n int) {
	list, err := f.ListEncoded(b.Context(), "/pods", opts, f.Stored())
	if err != nil {
		b.Fatal(err)
	}
	got := 0
	for _, err := range list.Items {
		if err != nil {
			b.Fatal(err)
		}
		got++
	}
	if got != n {
		b.Fatalf("%d Pods are listed, want %d", got, n)
	}
}

// fillLabelled creates small Pods of which 200 have one value of a label.
func fillLabelled(b *testing.B, f *fixture, n int) {
	for i := range n {
		pod := benchPod(b, i)
		pod.Annotations, pod.Spec.Volumes, pod.Status.Conditions = nil, nil, nil
		pod.Labels = map[string]string{
			"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%(n/200)), "app.kubernetes.io/instance": "production",
			"app.kubernetes.io/managed-by": "bench", "pod-template-hash": "7d4b9c6f5", "team": fmt.Sprintf("team-%d", i%7),
		}
		if err := f.Create(b.Context(), podKey(pod), pod, pod, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// processTime returns the processor time that the process has used, in nanoseconds.
func processTime(b *testing.B) int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
