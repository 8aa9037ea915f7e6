package storage

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the scheme of benchPod
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"

	"byre/apiserver/storage/encoding"
)

// podStore is a Store of real pods.
func podStore(b testing.TB, on backend) *fixture {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	message := encoding.NewMessage(legacyscheme.Scheme, kind)
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeJSON,
		StorageSerializer: legacyscheme.Codecs,
		StorageVersion:    kind.GroupVersion(),
		MemoryVersion:     api.SchemeGroupVersion,
		DecoderDecoratorFn: func(all []runtime.Decoder) []runtime.Decoder {
			return append([]runtime.Decoder{encoding.NewDecoder(legacyscheme.Scheme, kind, message)}, all...)
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return newFixture(b, on, func(cfg *Config) {
		cfg.Codec, cfg.StorageVersion, cfg.Message = codec, kind.GroupVersion(), message
		cfg.NewFunc = func() runtime.Object { return &api.Pod{} }
		cfg.AttrFunc = podstrategy.GetAttrs
	})
}

// benchPod returns a Pod of about 4.8 kB, with what a controller and a kubelet set.
func benchPod(b testing.TB, i int) *api.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              fmt.Sprintf("bench-%06d", i),
			Namespace:         fmt.Sprintf("ns-%d", i%10),
			UID:               types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
			Labels:            map[string]string{"app": "bench", "pod-template-hash": "abc", "n": fmt.Sprint(i)},
			Annotations:       map[string]string{"filler": strings.Repeat("x", 2500)},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d", i%200),
			Containers: []corev1.Container{{
				Name: "c", Image: "registry.example/app:1",
				Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	for i := range 6 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: fmt.Sprintf("v%d", i),
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
			}},
		})
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("c", i)), Status: "True"})
	}
	out, err := legacyscheme.Scheme.ConvertToVersion(pod, api.SchemeGroupVersion)
	if err != nil {
		b.Fatal(err)
	}
	return out.(*api.Pod)
}

func podKey(pod *api.Pod) string { return "/pods/" + pod.Namespace + "/" + pod.Name }

func fill(b testing.TB, f *fixture, n int) {
	var next atomic.Int64
	done := make(chan error)
	for range 64 {
		go func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				pod := benchPod(b, i)
				if err := f.Create(context.Background(), podKey(pod), pod, &api.Pod{}, 0); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 64 {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, on := range backends() {
		b.Run(on.name, func(b *testing.B) {
			f := podStore(b, on)
			fill(b, f, 1)
			var n atomic.Int64
			n.Store(10)
			b.ReportAllocs()
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					pod := benchPod(b, int(n.Add(1)))
					if err := f.Create(context.Background(), podKey(pod), pod, &api.Pod{}, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

const benchPods = 10_000

func everythingOf(field string) storage.ListOptions {
	selector := fields.Everything()
	if field != "" {
		selector = fields.ParseSelectorOrDie(field)
	}
	return storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: selector, GetAttrs: podstrategy.GetAttrs,
	}}
}

func BenchmarkListEncoded(b *testing.B) {
	f := podStore(b, backends()[0])
	fill(b, f, benchPods)
	for _, field := range []string{"", "spec.nodeName=node-7", "status.phase=Running"} {
		b.Run("field="+field, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				list, err := f.ListEncoded(b.Context(), "/pods", everythingOf(field), f.Stored())
				if err != nil {
					b.Fatal(err)
				}
				buf := make([]byte, 0, 64<<10)
				n, size := 0, 0
				for e, err := range list.Items {
					if err != nil {
						b.Fatal(err)
					}
					if buf = e.AppendJSON(buf, false); len(buf) > 32<<10 {
						size += len(buf)
						buf = buf[:0]
					}
					n++
				}
				if size+len(buf) == 0 || n == 0 {
					b.Fatal("nothing listed")
				}
			}
		})
	}
}

// BenchmarkInitialEventsByField measures the initial events of a watch of one node's Pods:
// the time of an event must not grow with the number of Pods.
func BenchmarkInitialEventsByField(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := podStore(b, backends()[0])
			fill(b, f, n)
			opts := everythingOf("spec.nodeName=node-1")
			if _, err := f.ListEncoded(b.Context(), "/pods", opts, f.Stored()); err != nil { // makes the index
				b.Fatal(err)
			}
			seen := 0
			for b.Loop() {
				w, err := f.WatchEncoded(b.Context(), "/pods", opts, f.Stored())
				if err != nil {
					b.Fatal(err)
				}
				for w.cursor.initial != nil {
					events, err := w.Next(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					seen += len(events)
				}
				w.Close()
			}
			b.ReportMetric(float64(seen)/float64(b.N), "events/op")
		})
	}
}

// BenchmarkWatchers measures a status update while watchers follow: of all Pods, and of the
// Pods of one node each.
func BenchmarkWatchers(b *testing.B) {
	for _, c := range []struct {
		watchers int
		field    string
	}{{0, ""}, {200, ""}, {5000, "spec.nodeName=node-%d"}, {5000, ""}} {
		b.Run(fmt.Sprintf("%d/%s", c.watchers, c.field), func(b *testing.B) {
			f := podStore(b, backends()[0])
			fill(b, f, 200)
			ctx, cancel := context.WithCancel(b.Context())
			var seen atomic.Int64
			done := make(chan struct{})
			for i := range c.watchers {
				field := c.field
				if field != "" {
					field = fmt.Sprintf(field, i%200)
				}
				opts := everythingOf(field)
				opts.ResourceVersion = fmt.Sprint(f.feed.Revision())
				w, err := f.WatchEncoded(ctx, "/pods", opts, f.Stored())
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					defer func() { w.Close(); done <- struct{}{} }()
					for {
						events, err := w.Next(ctx)
						if err != nil {
							return
						}
						seen.Add(int64(len(events)))
					}
				}()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				pod := benchPod(b, 1+i%200)
				err := f.GuaranteedUpdate(ctx, podKey(pod), &api.Pod{}, false, nil,
					func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
						in.(*api.Pod).Status.Message = fmt.Sprint(i)
						return in, nil, nil
					}, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(seen.Load())/float64(b.N), "events/op")
			cancel()
			for range c.watchers {
				<-done
			}
		})
	}
}
