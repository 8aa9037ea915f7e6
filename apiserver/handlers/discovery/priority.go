package discovery

import "k8s.io/apimachinery/pkg/runtime/schema"

// Priority determines the order of group versions in discovery: groups are listed by
// descending Group, the versions of a group by descending Version. If several groups have
// a resource name, kubectl resolves it to the group that is listed first.
type Priority struct {
	Group   int32
	Version int32
}

// registrationGroup is the group that is listed before all others, with its priorities
// (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
const (
	registrationGroup           = "apiregistration.k8s.io"
	registrationPriority        = 20001
	registrationVersionPriority = 1
)

// Priorities returns the priorities of the group versions that the server serves itself,
// without apiregistration.k8s.io: those of kube-apiserver (cmd/kube-apiserver/app/aggregator.go
// and pkg/controlplane/apiserver/aggregator.go), and byre's own, which come after all custom
// resources.
func Priorities() map[schema.GroupVersion]Priority {
	return map[schema.GroupVersion]Priority{
		{Group: "", Version: "v1"}:                                   {18000, 1},
		{Group: "apps", Version: "v1"}:                               {17800, 15},
		{Group: "events.k8s.io", Version: "v1"}:                      {17750, 15},
		{Group: "events.k8s.io", Version: "v1beta1"}:                 {17750, 5},
		{Group: "authentication.k8s.io", Version: "v1"}:              {17700, 15},
		{Group: "authentication.k8s.io", Version: "v1beta1"}:         {17700, 9},
		{Group: "authentication.k8s.io", Version: "v1alpha1"}:        {17700, 1},
		{Group: "authorization.k8s.io", Version: "v1"}:               {17600, 15},
		{Group: "autoscaling", Version: "v2"}:                        {17500, 30},
		{Group: "autoscaling", Version: "v1"}:                        {17500, 15},
		{Group: "autoscaling", Version: "v2beta1"}:                   {17500, 9},
		{Group: "autoscaling", Version: "v2beta2"}:                   {17500, 1},
		{Group: "batch", Version: "v1"}:                              {17400, 15},
		{Group: "batch", Version: "v1beta1"}:                         {17400, 9},
		{Group: "batch", Version: "v2alpha1"}:                        {17400, 9},
		{Group: "certificates.k8s.io", Version: "v1"}:                {17300, 15},
		{Group: "certificates.k8s.io", Version: "v1beta1"}:           {17300, 9},
		{Group: "certificates.k8s.io", Version: "v1alpha1"}:          {17300, 1},
		{Group: "networking.k8s.io", Version: "v1"}:                  {17200, 15},
		{Group: "networking.k8s.io", Version: "v1beta1"}:             {17200, 9},
		{Group: "policy", Version: "v1"}:                             {17100, 15},
		{Group: "policy", Version: "v1beta1"}:                        {17100, 9},
		{Group: "rbac.authorization.k8s.io", Version: "v1"}:          {17000, 15},
		{Group: "storage.k8s.io", Version: "v1"}:                     {16800, 15},
		{Group: "storage.k8s.io", Version: "v1beta1"}:                {16800, 9},
		{Group: "storage.k8s.io", Version: "v1alpha1"}:               {16800, 1},
		{Group: "apiextensions.k8s.io", Version: "v1"}:               {16700, 15},
		{Group: "admissionregistration.k8s.io", Version: "v1"}:       {16700, 15},
		{Group: "admissionregistration.k8s.io", Version: "v1beta1"}:  {16700, 12},
		{Group: "admissionregistration.k8s.io", Version: "v1alpha1"}: {16700, 9},
		{Group: "scheduling.k8s.io", Version: "v1"}:                  {16600, 15},
		{Group: "scheduling.k8s.io", Version: "v1beta1"}:             {16600, 9},
		{Group: "scheduling.k8s.io", Version: "v1alpha3"}:            {16600, 3},
		{Group: "coordination.k8s.io", Version: "v1"}:                {16500, 15},
		{Group: "coordination.k8s.io", Version: "v1beta1"}:           {16500, 13},
		{Group: "coordination.k8s.io", Version: "v1alpha2"}:          {16500, 12},
		{Group: "node.k8s.io", Version: "v1"}:                        {16300, 15},
		{Group: "node.k8s.io", Version: "v1beta1"}:                   {16300, 9},
		{Group: "node.k8s.io", Version: "v1alpha1"}:                  {16300, 1},
		{Group: "discovery.k8s.io", Version: "v1"}:                   {16200, 15},
		{Group: "discovery.k8s.io", Version: "v1beta1"}:              {16200, 12},
		{Group: "resource.k8s.io", Version: "v1"}:                    {16200, 21},
		{Group: "resource.k8s.io", Version: "v1beta2"}:               {16200, 15},
		{Group: "resource.k8s.io", Version: "v1beta1"}:               {16200, 9},
		{Group: "resource.k8s.io", Version: "v1alpha3"}:              {16200, 1},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:       {16100, 21},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3"}:  {16100, 18},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta2"}:  {16100, 15},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta1"}:  {16100, 12},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1alpha1"}: {16100, 9},
		{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}:    {16000, 9},
		{Group: "storagemigration.k8s.io", Version: "v1"}:            {15800, 15},
		{Group: "storagemigration.k8s.io", Version: "v1beta1"}:       {15800, 9},
		{Group: "lifecycle.k8s.io", Version: "v1alpha1"}:             {15700, 1},
		{Group: "history.byre.dev", Version: "v1"}:                   {900, 15},
		{Group: "sql.byre.dev", Version: "v1"}:                       {900, 15},
	}
}
