package lookup

import (
	"context"

	"k8s.io/api/core/v1"
	discoveryapi "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

type serviceAccounts struct {
	corev1.ServiceAccountInterface
	reader reader[v1.ServiceAccount]
}

func (s serviceAccounts) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.ServiceAccount, error) {
	return s.reader.get(ctx, name, opts)
}

type secrets struct {
	corev1.SecretInterface
	reader reader[v1.Secret]
}

func (s secrets) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Secret, error) {
	return s.reader.get(ctx, name, opts)
}

type nodes struct {
	corev1.NodeInterface
	reader reader[v1.Node]
}

func (n nodes) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Node, error) {
	return n.reader.get(ctx, name, opts)
}

type services struct {
	corev1.ServiceInterface
	reader reader[v1.Service]
}

func (s services) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Service, error) {
	return s.reader.get(ctx, name, opts)
}

type pods struct {
	corev1.PodInterface
	reader reader[v1.Pod]
}

func (p pods) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Pod, error) {
	return p.reader.get(ctx, name, opts)
}

// List reads the store if the options select by labels only, and else makes a request.
func (p pods) List(ctx context.Context, opts metav1.ListOptions) (*v1.PodList, error) {
	if !selectsByLabelsOnly(opts) {
		return p.PodInterface.List(ctx, opts)
	}
	items, err := p.reader.list(ctx, opts)
	return &v1.PodList{Items: items}, err
}

type endpointSlices struct {
	discoveryv1.EndpointSliceInterface
	reader reader[discoveryapi.EndpointSlice]
}

// List reads the store if the options select by labels only, and else makes a request.
func (e endpointSlices) List(ctx context.Context, opts metav1.ListOptions) (*discoveryapi.EndpointSliceList, error) {
	if !selectsByLabelsOnly(opts) {
		return e.EndpointSliceInterface.List(ctx, opts)
	}
	items, err := e.reader.list(ctx, opts)
	return &discoveryapi.EndpointSliceList{Items: items}, err
}

// selectsByLabelsOnly reports whether the options have nothing but a label selector and a
// resourceVersion. Informers list by field or in pages.
func selectsByLabelsOnly(opts metav1.ListOptions) bool {
	return opts.FieldSelector == "" && opts.Limit == 0 && opts.Continue == "" && opts.ResourceVersionMatch == ""
}
