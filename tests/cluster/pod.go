package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// pod is a pod on the node, from its binding to its removal.
type pod struct {
	k               *kubelet
	namespace, name string
	dir             string // volumes and containers' writable layers, in memory
	network         *podNetwork
	volumes         map[string]*volume
	started         metav1.Time

	stopping chan struct{} // closed when the pod has to terminate
	gone     chan struct{} // closed when it has to end at once
	changed  chan struct{} // the status may need writing
	refresh  chan struct{} // volumes may need writing

	mu         sync.Mutex
	obj        *corev1.Pod
	killAt     time.Time // when stopping: the end of the grace period
	init, main []*container
	ready      bool // network and volumes are set up
	problem    string
	conditions []corev1.PodCondition
	finished   bool
}

func newPod(k *kubelet, obj *corev1.Pod) *pod {
	p := &pod{
		k: k, namespace: obj.Namespace, name: obj.Name, obj: obj, started: metav1.Now(),
		dir:      filepath.Join(k.dir, string(obj.UID)),
		volumes:  map[string]*volume{},
		stopping: make(chan struct{}), gone: make(chan struct{}),
		changed: make(chan struct{}, 1), refresh: make(chan struct{}, 1),
	}
	for i := range obj.Spec.InitContainers {
		p.init = append(p.init, newContainer(p, &obj.Spec.InitContainers[i], true))
	}
	for i := range obj.Spec.Containers {
		p.main = append(p.main, newContainer(p, &obj.Spec.Containers[i], false))
	}
	return p
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (p *pod) refreshVolumes() { notify(p.refresh) }

// update applies a newer version of the object. A deletion starts the
// termination; a later one with a shorter grace period shortens it.
func (p *pod) update(obj *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.obj = obj
	notify(p.refresh)
	notify(p.changed)
	if obj.DeletionTimestamp == nil {
		return
	}
	end := time.Now().Add(time.Duration(ptr.Deref(obj.DeletionGracePeriodSeconds, 0)) * time.Second)
	if p.killAt.IsZero() {
		p.killAt = end
		close(p.stopping)
	} else if left := obj.DeletionTimestamp.Time; left.Before(p.killAt.Add(-time.Second)) {
		p.killAt = left
	}
}

// kill ends the pod at once, because its object was deleted.
func (p *pod) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killAt.IsZero() {
		close(p.stopping)
	}
	p.killAt = time.Unix(1, 0)
	if !closed(p.gone) {
		close(p.gone)
	}
}

func (p *pod) object() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.obj
}

func (p *pod) ip() string {
	if p.object().Spec.HostNetwork {
		return nodeIP
	}
	return p.network.ip.String()
}

func (p *pod) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { p.statusLoop(ctx) })
	if p.setup(ctx) {
		loops.Go(func() { p.volumeLoop(ctx) })
		p.runContainers()
	}
	p.mu.Lock()
	p.finished = true
	p.mu.Unlock()
	notify(p.changed)

	// The object of a completed pod stays until someone deletes it.
	<-p.stopping
	cancel()
	loops.Wait()
	if !closed(p.gone) {
		p.writeStatus(context.Background(), nil)
		err := p.k.client.CoreV1().Pods(p.namespace).Delete(context.Background(), p.name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(p.object().UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			klog.ErrorS(err, "Cannot delete pod", "pod", p.namespace+"/"+p.name)
		}
	}
	if p.network != nil {
		p.network.remove()
	}
	p.removeVolumes()
	os.RemoveAll(p.dir)
}

// setup creates network and volumes, and retries while something is missing. It
// returns false if the pod ends first.
func (p *pod) setup(ctx context.Context) bool {
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := p.trySetup(ctx)
		p.mu.Lock()
		p.ready = err == nil
		p.problem = ""
		if err != nil {
			p.problem = err.Error()
		}
		p.mu.Unlock()
		notify(p.changed)
		if err == nil {
			return true
		}
		select {
		case <-p.stopping:
			return false
		case <-p.refresh:
		case <-time.After(delay):
		}
	}
}

func (p *pod) trySetup(ctx context.Context) error {
	obj := p.object()
	if p.network == nil && !obj.Spec.HostNetwork {
		network, err := p.k.networks.create()
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.network = network
		p.mu.Unlock()
	}
	return p.writeVolumes(ctx, obj)
}

// runContainers runs the init containers one after the other, then the others
// together. It returns when none of them will be restarted.
func (p *pod) runContainers() {
	var running sync.WaitGroup
	for _, c := range p.init {
		if c.sidecar() {
			running.Go(c.supervise)
			for !c.isStarted() && !closed(p.stopping) {
				time.Sleep(20 * time.Millisecond)
			}
		} else if c.supervise(); !c.succeeded() {
			p.stopSidecars()
			running.Wait()
			return
		}
	}
	var mains sync.WaitGroup
	for _, c := range p.main {
		mains.Go(c.supervise)
	}
	mains.Wait()
	p.stopSidecars()
	running.Wait()
}

func (p *pod) stopSidecars() {
	for _, c := range p.init {
		if c.sidecar() {
			close(c.stop)
		}
	}
}

func (p *pod) statusLoop(ctx context.Context) {
	var last []byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
			last = p.writeStatus(ctx, last)
		}
	}
}

// writeStatus patches the pod's status if it differs from the last one written.
func (p *pod) writeStatus(ctx context.Context, last []byte) []byte {
	obj := p.object()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": obj.UID},
		"status":   p.status(),
	})
	if err != nil || string(patch) == string(last) {
		return last
	}
	_, err = p.k.client.CoreV1().Pods(p.namespace).Patch(ctx, p.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot write pod status", "pod", p.namespace+"/"+p.name)
			time.AfterFunc(time.Second, func() { notify(p.changed) })
		}
		return last
	}
	return patch
}

// status returns the pod's status for the API.
func (p *pod) status() corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := corev1.PodStatus{
		StartTime: &p.started,
		HostIP:    nodeIP,
		HostIPs:   []corev1.HostIP{{IP: nodeIP}},
		QOSClass:  p.obj.Status.QOSClass,
	}
	switch {
	case p.obj.Spec.HostNetwork:
		s.PodIP = nodeIP
	case p.network != nil:
		s.PodIP = p.network.ip.String()
	}
	if s.PodIP != "" {
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	initialized := p.initStatuses(&s)
	p.mainStatuses(&s, initialized)
	s.Phase = p.phase(&s, initialized)
	p.setConditions(&s, initialized)
	s.Conditions = append(s.Conditions, p.conditions...)
	return s
}

// initStatuses adds the statuses of init containers, and reports whether the others may start.
func (p *pod) initStatuses(s *corev1.PodStatus) bool {
	initialized := true
	for _, c := range p.init {
		s.InitContainerStatuses = append(s.InitContainerStatuses, c.status)
		if c.sidecar() {
			initialized = initialized && ptr.Deref(c.status.Started, false)
		} else {
			initialized = initialized && c.status.Ready
		}
	}
	return initialized
}

func (p *pod) mainStatuses(s *corev1.PodStatus, initialized bool) {
	for _, c := range p.main {
		cs := c.status
		if cs.State.Waiting != nil && cs.State.Waiting.Reason == "ContainerCreating" && len(p.init) > 0 && !initialized {
			cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
		}
		if cs.State.Waiting != nil && p.problem != "" {
			cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: cs.State.Waiting.Reason, Message: p.problem}
		}
		s.ContainerStatuses = append(s.ContainerStatuses, cs)
	}
}

func (p *pod) phase(s *corev1.PodStatus, initialized bool) corev1.PodPhase {
	var waiting, failed int
	for _, cs := range s.ContainerStatuses {
		switch {
		case cs.State.Terminated != nil && cs.State.Terminated.ExitCode != 0:
			failed++
		case cs.State.Waiting != nil && cs.LastTerminationState.Terminated == nil:
			waiting++
		}
	}
	for _, c := range p.init {
		if t := c.status.State.Terminated; t != nil && t.ExitCode != 0 && !c.sidecar() {
			failed++
		}
	}
	switch {
	case p.finished && failed > 0:
		return corev1.PodFailed
	case p.finished && waiting == 0:
		return corev1.PodSucceeded
	case p.finished || waiting > 0 || !initialized:
		return corev1.PodPending
	}
	return corev1.PodRunning
}

func (p *pod) setConditions(s *corev1.PodStatus, initialized bool) {
	unready := []string{}
	for _, cs := range s.ContainerStatuses {
		if !cs.Ready {
			unready = append(unready, cs.Name)
		}
	}
	completed := s.Phase == corev1.PodSucceeded
	notReady, message := "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	if completed {
		notReady, message = "PodCompleted", ""
	}
	containersReady := len(unready) == 0 && initialized && !p.finished
	p.setCondition(corev1.PodReadyToStartContainers, p.ready && !p.finished, "", "")
	p.setCondition(corev1.PodInitialized, initialized || completed, "ContainersNotInitialized", "")
	p.setCondition(corev1.ContainersReady, containersReady, notReady, message)
	podReady := containersReady
	for _, gate := range p.obj.Spec.ReadinessGates {
		open := false
		for _, c := range p.obj.Status.Conditions {
			open = open || (c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue)
		}
		if !open && podReady {
			podReady, notReady, message = false, "ReadinessGatesNotReady", "gate not open: "+string(gate.ConditionType)
		}
	}
	p.setCondition(corev1.PodReady, podReady, notReady, message)
}

func (p *pod) setCondition(kind corev1.PodConditionType, ok bool, reason, message string) {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
	if !ok {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, message
	}
	for i, old := range p.conditions {
		if old.Type == kind {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			p.conditions[i] = c
			return
		}
	}
	p.conditions = append(p.conditions, c)
}
