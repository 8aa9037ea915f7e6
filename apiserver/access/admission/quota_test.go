package admission

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

// A request that one quota refuses is refused, also where the status of another quota is in conflict.
func TestQuota_RefusedRequestIsNotAdmittedByAnotherQuota(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		serial bool
		admits bool
	}{
		{"upstream's plugin admits it", false, true},
		{"in a namespace with several quotas", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := refusedAmongOthers(t, test.serial); (err == nil) != test.admits || err != nil && !strings.Contains(err.Error(), "exceeded quota: maps") {
					t.Errorf("the ConfigMap beyond the quota: %v", err)
				}
			})
		})
	}
}

// refusedAmongOthers has a ConfigMap, of which the quota has no more, wait together with a Secret, whose quota is in
// conflict. It returns what the ConfigMap gets.
func refusedAmongOthers(t *testing.T, serial bool) error {
	quota := func(name string, of corev1.ResourceName, hard, used string) *corev1.ResourceQuota {
		limits := corev1.ResourceList{of: resource.MustParse(hard)}
		return &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ResourceVersion: "1"}, Spec: corev1.ResourceQuotaSpec{Hard: limits},
			Status: corev1.ResourceQuotaStatus{Hard: limits, Used: corev1.ResourceList{of: resource.MustParse(used)}},
		}
	}
	client := fake.NewClientset(quota("maps", "configmaps", "1", "1"), quota("secrets", "secrets", "9", "0"))
	updates, proceed := 0, make(chan struct{})
	client.PrependReactor("update", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) {
		switch updates++; updates {
		case 1:
			<-proceed
		case 2:
			return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "secrets", nil)
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	upstream, err := resourcequota.NewResourceQuota(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	configuration, err := quotainstall.NewQuotaConfigurationForAdmission(factory, nil)
	if err != nil {
		t.Fatal(err)
	}
	upstream.SetDrainedNotification(ctx.Done())
	upstream.SetExternalKubeClientSet(client)
	upstream.SetExternalKubeInformerFactory(factory)
	upstream.SetQuotaConfiguration(configuration)
	plugin := admission.ValidationInterface(upstream)
	if serial {
		plugin = serializeQuota(factory).Decorate(upstream, resourcequota.PluginName).(admission.ValidationInterface)
	}
	quotas := factory.Core().V1().ResourceQuotas().Informer()
	go quotas.RunWithContext(ctx)
	synctest.Wait()

	ask := func(kind, plural string, object runtime.Object) chan error {
		answer := make(chan error, 1)
		attributes := admission.NewAttributesRecord(object, nil, corev1.SchemeGroupVersion.WithKind(kind), "ns", "a",
			corev1.SchemeGroupVersion.WithResource(plural), "", admission.Create, &metav1.CreateOptions{}, false, nil)
		go func() { answer <- plugin.Validate(ctx, attributes, nil) }()
		synctest.Wait()
		return answer
	}
	first := ask("Secret", "secrets", &corev1.Secret{})
	refused := ask("ConfigMap", "configmaps", &corev1.ConfigMap{})
	second := ask("Secret", "secrets", &corev1.Secret{})
	close(proceed)
	for _, answer := range []chan error{first, second} {
		if err := <-answer; err != nil {
			t.Errorf("a Secret within its quota: %v", err)
		}
	}
	return <-refused
}
