/*
 * A RocketMQ Java client that takes orders: one JSON object per input line, one JSON object per output line.
 *
 *   in   {"id": 7, "op": "send", "on": "producer-1", ...}
 *   out  {"id": 7, "ok": <result>}   or   {"id": 7, "error": <class>, "code": <number or null>, "message": <text>}
 *
 * Orders run side by side, each in a thread of its own; answers come as they are ready. No order ends the process; the
 * end of the input does. "on" names a client made by one of the start orders. The first output line is {"ready": true}.
 *
 * Start orders carry "on" (the name to give), "nameserver", "group" and "options": bean properties of the client, set
 * by their setters ({"maxReconsumeTimes": 2, "messageModel": "BROADCASTING", "vipChannelEnabled": true}).
 * A queue is {"topic", "brokerName", "queueId"}. A message to send is {"topic", "body" (base64), "tags", "keys", "flag",
 * "delayLevel", "properties"}. A message received has every field: see describe(MessageExt).
 *
 *   producer.start   transaction (bool), compressType (ZLIB, LZ4, ZSTD), trace (bool), traceTopic
 *   send             messages, mode (sync, async, oneway), queue, selectBy (text, hashed), timeoutMs -> [result or error]
 *   send.batch       messages, queue -> result
 *   send.transaction message, local (COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW, THROW), checks ([state per check-back])
 *   send.checks      count, timeoutMs -> messages of the check-backs received
 *   request          message, timeoutMs -> the reply
 *   push.start       subscriptions ([{topic, expression, type}]), orderly, strategy, trace, traceTopic, replyFrom (name of
 *                    a producer that answers each message), script {fail: {key or "*": times}, how, delayLevel, ackIndex}
 *                    where how is LATER, THROW, NULL, SUSPEND (orderly) or ACK_INDEX
 *   push.received    count, timeoutMs -> all messages so far, once there are count of them or the time is over
 *   push.assignment  topic -> queues        push.pause, push.resume      push.commit sends noted offsets to the broker now
 *   lite.start       subscriptions, autoCommit       lite.queues topic     lite.assign queues     lite.assignment
 *   lite.poll timeoutMs     lite.seek queue, to (offset, "begin", "end")     lite.commit     lite.committed queue
 *   lite.offsetForTimestamp queue, timestamp         lite.pause, lite.resume queues
 *   pull.start       topics                 pull.queues topic
 *   pull.pull        queue, expression, type, offset, count, block -> {status, nextBeginOffset, minOffset, maxOffset, messages}
 *   pull.update      queue, offset          pull.fetch queue, fromStore
 *   pull.back        message offset id...   (topic, msgId, delayLevel, group) sends one message back for a retry
 *   admin.createTopic key, topic, queues    admin.maxOffset, admin.minOffset, admin.earliest queue
 *   admin.searchOffset queue, timestamp     admin.view topic, msgId
 *   admin.query      topic, key, count, begin, end      admin.route topic      (admin orders go to any producer)
 *   stop             ends the named client; the answer comes when it has left its groups, with later (bool) at once,
 *                    with fully (bool) when all its threads have ended
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.ServiceState;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Harness {
    private final Map<String, Object> clients = new ConcurrentHashMap<>();
    private final Map<String, Recorder> recorders = new ConcurrentHashMap<>();
    private final Map<String, Decisions> decisions = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // Whatever the client prints must not mix with the answers.
        Harness harness = new Harness();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answers.println("{\"ready\": true}");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            Order order = new Order(Json.parse(line));
            threads.execute(() -> {
                String answer = Json.write(harness.answer(order));
                synchronized (answers) {
                    answers.println(answer);
                }
            });
        }
        Runtime.getRuntime().halt(0); // Clients left running would keep the process alive.
    }

    private Map<String, Object> answer(Order order) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", order.get("id"));
        try {
            answer.put("ok", run(order));
        } catch (Throwable error) {
            answer.putAll(describe(error));
        }
        return answer;
    }

    private Object run(Order order) throws Exception {
        switch (order.text("op")) {
            case "producer.start": return startProducer(order);
            case "send": return send(order);
            case "send.batch": return sendBatch(order);
            case "send.transaction": return sendTransaction(order);
            case "send.checks": return decisions.get(order.text("on")).checks.await(order);
            case "request": return describe(producer(order).request(message(order.map("message")), order.number("timeoutMs", 5000)));
            case "push.start": return startPush(order);
            case "push.received": return recorders.get(order.text("on")).await(order);
            case "push.assignment": return assignment(order);
            case "push.commit": push(order).getDefaultMQPushConsumerImpl().persistConsumerOffset(); return null;
            case "push.pause": push(order).suspend(); return null;
            case "push.resume": push(order).resume(); return null;
            case "lite.start": return startLite(order);
            case "lite.queues": return describeQueues(lite(order).fetchMessageQueues(order.text("topic")));
            case "lite.assign": lite(order).assign(queues(order)); return null;
            case "lite.assignment": return describeQueues(lite(order).assignment());
            case "lite.poll": return describeAll(lite(order).poll(order.number("timeoutMs", 1000)));
            case "lite.seek": return seek(order);
            case "lite.commit": lite(order).commitSync(); return null;
            case "lite.committed": return lite(order).committed(queue(order.map("queue")));
            case "lite.offsetForTimestamp":
                return lite(order).offsetForTimestamp(queue(order.map("queue")), order.number("timestamp", 0));
            case "lite.pause": lite(order).pause(queues(order)); return null;
            case "lite.resume": lite(order).resume(queues(order)); return null;
            case "pull.start": return startPull(order);
            case "pull.queues": return describeQueues(pull(order).fetchSubscribeMessageQueues(order.text("topic")));
            case "pull.pull": return pullOnce(order);
            case "pull.update":
                pull(order).updateConsumeOffset(queue(order.map("queue")), order.number("offset", 0));
                pull(order).getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(Set.of(queue(order.map("queue"))));
                return null;
            case "pull.fetch": return pull(order).fetchConsumeOffset(queue(order.map("queue")), order.is("fromStore"));
            case "pull.back":
                pull(order).sendMessageBack(pull(order).viewMessage(order.text("topic"), order.text("msgId")),
                    (int) order.number("delayLevel", 0));
                return null;
            case "admin.createTopic": return createTopic(order);
            case "admin.maxOffset": return producer(order).maxOffset(queue(order.map("queue")));
            case "admin.minOffset": return producer(order).minOffset(queue(order.map("queue")));
            case "admin.earliest": return producer(order).earliestMsgStoreTime(queue(order.map("queue")));
            case "admin.searchOffset":
                return producer(order).searchOffset(queue(order.map("queue")), order.number("timestamp", 0));
            case "admin.view": return describe(producer(order).viewMessage(order.text("topic"), order.text("msgId")));
            case "admin.query": return query(order);
            case "admin.route": return route(order);
            case "stop": return stop(order);
            default: throw new IllegalArgumentException("unknown op " + order.text("op"));
        }
    }

    // ---- producers

    private Object startProducer(Order order) throws Exception {
        String group = order.text("group");
        if (order.has("compressType")) {
            System.setProperty("rocketmq.message.compressType", order.text("compressType"));
        }
        DefaultMQProducer producer;
        if (order.is("transaction")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group);
            Decisions decided = new Decisions();
            decisions.put(order.text("on"), decided);
            transactional.setTransactionListener(decided);
            producer = transactional;
        } else if (order.is("trace")) {
            producer = new DefaultMQProducer(group, true, order.text("traceTopic"));
        } else {
            producer = new DefaultMQProducer(group);
        }
        System.clearProperty("rocketmq.message.compressType");
        configure(producer, order);
        producer.start();
        clients.put(order.text("on"), producer);
        return producer.buildMQClientId();
    }

    private Object send(Order order) throws Exception {
        List<CompletableFuture<Object>> results = new ArrayList<>();
        for (Object each : order.list("messages")) {
            CompletableFuture<Object> result = new CompletableFuture<>();
            results.add(result);
            try {
                sendOne(order, message(new Order(each)), result);
            } catch (Exception error) {
                result.complete(describe(error));
            }
        }
        List<Object> answers = new ArrayList<>();
        for (CompletableFuture<Object> result : results) {
            answers.add(result.get(order.number("timeoutMs", 10000) + 5000, TimeUnit.MILLISECONDS));
        }
        return answers;
    }

    private void sendOne(Order order, Message message, CompletableFuture<Object> result) throws Exception {
        DefaultMQProducer producer = producer(order);
        long timeout = order.number("timeoutMs", 10000);
        MessageQueue queue = order.has("queue") ? queue(order.map("queue")) : null;
        String key = order.text("selectBy");
        SelectMessageQueueByHash byHash = new SelectMessageQueueByHash();
        switch (order.has("mode") ? order.text("mode") : "sync") {
            case "async":
                SendCallback callback = new SendCallback() {
                    @Override public void onSuccess(SendResult sent) {
                        result.complete(describe(sent));
                    }

                    @Override public void onException(Throwable error) {
                        result.complete(describe(error));
                    }
                };
                if (queue != null) {
                    producer.send(message, queue, callback, timeout);
                } else if (key != null) {
                    producer.send(message, byHash, key, callback, timeout);
                } else {
                    producer.send(message, callback, timeout);
                }
                break;
            case "oneway":
                if (queue != null) {
                    producer.sendOneway(message, queue);
                } else if (key != null) {
                    producer.sendOneway(message, byHash, key);
                } else {
                    producer.sendOneway(message);
                }
                result.complete(null);
                break;
            default:
                if (queue != null) {
                    result.complete(describe(producer.send(message, queue, timeout)));
                } else if (key != null) {
                    result.complete(describe(producer.send(message, byHash, key, timeout)));
                } else {
                    result.complete(describe(producer.send(message, timeout)));
                }
        }
    }

    private Object sendBatch(Order order) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object each : order.list("messages")) {
            messages.add(message(new Order(each)));
        }
        long timeout = order.number("timeoutMs", 10000);
        return describe(order.has("queue")
            ? producer(order).send(messages, queue(order.map("queue")), timeout)
            : producer(order).send(messages, timeout));
    }

    private Object sendTransaction(Order order) throws Exception {
        TransactionMQProducer producer = (TransactionMQProducer) client(order);
        Message message = message(order.map("message"));
        Decisions decided = decisions.get(order.text("on"));
        decided.script(message.getKeys(), order.text("local"), order.has("checks") ? order.list("checks") : List.of());
        TransactionSendResult sent = producer.sendMessageInTransaction(message, null);
        Map<String, Object> result = describe(sent);
        result.put("localState", sent.getLocalTransactionState() == null ? null : sent.getLocalTransactionState().name());
        return result;
    }

    /** Scripted outcomes of transactions, found by the message's key. */
    private static final class Decisions implements TransactionListener {
        final Recorder checks = new Recorder();
        private final Map<String, String> local = new HashMap<>();
        private final Map<String, List<Object>> later = new HashMap<>();

        synchronized void script(String key, String first, List<Object> checks) {
            local.put(key, first);
            later.put(key, new ArrayList<>(checks));
        }

        @Override public synchronized LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(local.getOrDefault(message.getKeys(), "COMMIT_MESSAGE"));
        }

        @Override public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks.add(message, "check");
            List<Object> left = later.getOrDefault(message.getKeys(), List.of());
            return state(left.isEmpty() ? "UNKNOW" : (String) left.remove(0));
        }

        private static LocalTransactionState state(String name) {
            if (name.equals("THROW")) {
                throw new IllegalStateException("scripted failure of a local transaction");
            }
            return LocalTransactionState.valueOf(name);
        }
    }

    // ---- push consumers

    private Object startPush(Order order) throws Exception {
        String group = order.text("group");
        DefaultMQPushConsumer consumer = order.is("trace")
            ? new DefaultMQPushConsumer(group, true, order.text("traceTopic"))
            : new DefaultMQPushConsumer(group);
        configure(consumer, order);
        if (order.has("strategy")) {
            consumer.setAllocateMessageQueueStrategy((AllocateMessageQueueStrategy) Class
                .forName("org.apache.rocketmq.client.consumer.rebalance." + order.text("strategy"))
                .getDeclaredConstructor().newInstance());
        }
        for (Object each : order.list("subscriptions")) {
            Order subscription = new Order(each);
            consumer.subscribe(subscription.text("topic"), selector(subscription));
        }
        Recorder recorder = new Recorder();
        recorders.put(order.text("on"), recorder);
        Script script = new Script(order.has("script") ? order.map("script") : new Order(Map.of()));
        DefaultMQProducer replier = order.has("replyFrom") ? (DefaultMQProducer) clients.get(order.text("replyFrom")) : null;
        if (order.is("orderly")) {
            consumer.registerMessageListener(orderly(recorder, script));
        } else {
            consumer.registerMessageListener(concurrently(recorder, script, replier));
        }
        consumer.start();
        clients.put(order.text("on"), consumer);
        return consumer.buildMQClientId();
    }

    private static MessageListenerConcurrently concurrently(Recorder recorder, Script script, DefaultMQProducer replier) {
        return (List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
            boolean fails = script.fails(messages);
            for (MessageExt message : messages) {
                if (replier != null) {
                    reply(replier, message);
                }
                recorder.add(message, fails ? script.how : "SUCCESS");
            }
            if (!fails) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            context.setDelayLevelWhenNextConsume(script.delayLevel);
            switch (script.how) {
                case "THROW": throw new IllegalStateException("scripted failure of a listener");
                case "NULL": return null;
                case "ACK_INDEX":
                    context.setAckIndex(script.ackIndex);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                default: return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        };
    }

    private static MessageListenerOrderly orderly(Recorder recorder, Script script) {
        return (List<MessageExt> messages, ConsumeOrderlyContext context) -> {
            boolean fails = script.fails(messages);
            for (MessageExt message : messages) {
                recorder.add(message, fails ? script.how : "SUCCESS");
            }
            if (!fails) {
                return ConsumeOrderlyStatus.SUCCESS;
            }
            switch (script.how) {
                case "THROW": throw new IllegalStateException("scripted failure of a listener");
                case "NULL": return null;
                default: return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
        };
    }

    private static void reply(DefaultMQProducer replier, MessageExt request) {
        try {
            byte[] body = ("reply to " + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            replier.send(MessageUtil.createReplyMessage(request, body), 5000);
        } catch (Exception error) {
            throw new IllegalStateException("cannot reply", error);
        }
    }

    private Object assignment(Order order) {
        List<Object> queues = new ArrayList<>();
        for (MessageQueue queue : push(order).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(order.text("topic"))) {
                queues.add(describe(queue));
            }
        }
        return queues;
    }

    /** Which messages a listener fails on, how often and in which way. */
    private static final class Script {
        final String how;
        final int delayLevel;
        final int ackIndex;
        private final Map<String, Long> failuresLeft = new HashMap<>();

        Script(Order script) {
            how = script.has("how") ? script.text("how") : "LATER";
            delayLevel = (int) script.number("delayLevel", 0);
            ackIndex = (int) script.number("ackIndex", -1);
            if (script.has("fail")) {
                script.map("fail").fields.forEach((key, times) -> failuresLeft.put(key, ((Number) times).longValue()));
            }
        }

        synchronized boolean fails(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                String key = failuresLeft.containsKey("*") ? "*" : String.valueOf(message.getKeys());
                long left = failuresLeft.getOrDefault(key, 0L);
                if (left > 0) {
                    failuresLeft.put(key, left - 1);
                    return true;
                }
            }
            return false;
        }
    }

    /** Messages in the order of their arrival. */
    private static final class Recorder {
        private final List<Map<String, Object>> messages = new ArrayList<>();

        synchronized void add(MessageExt message, String outcome) {
            Map<String, Object> described = describe(message);
            described.put("order", messages.size());
            described.put("outcome", outcome);
            described.put("receivedAt", System.currentTimeMillis());
            described.put("thread", Thread.currentThread().getName());
            messages.add(described);
            notifyAll();
        }

        synchronized List<Object> await(Order order) throws InterruptedException {
            long deadline = System.currentTimeMillis() + order.number("timeoutMs", 0);
            while (messages.size() < order.number("count", 0)) {
                long left = deadline - System.currentTimeMillis();
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            return new ArrayList<>(messages);
        }
    }

    // ---- pull consumers, new and old

    private Object startLite(Order order) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(order.text("group"));
        configure(consumer, order);
        consumer.setAutoCommit(order.is("autoCommit"));
        for (Object each : order.list("subscriptions")) {
            Order subscription = new Order(each);
            consumer.subscribe(subscription.text("topic"), selector(subscription));
        }
        consumer.start();
        clients.put(order.text("on"), consumer);
        return consumer.buildMQClientId();
    }

    private Object seek(Order order) throws Exception {
        MessageQueue queue = queue(order.map("queue"));
        Object to = order.get("to");
        if ("begin".equals(to)) {
            lite(order).seekToBegin(queue);
        } else if ("end".equals(to)) {
            lite(order).seekToEnd(queue);
        } else {
            lite(order).seek(queue, ((Number) to).longValue());
        }
        return null;
    }

    private Object startPull(Order order) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(order.text("group"));
        configure(consumer, order);
        for (Object topic : order.list("topics")) {
            consumer.getRegisterTopics().add((String) topic);
        }
        consumer.start();
        clients.put(order.text("on"), consumer);
        return consumer.buildMQClientId();
    }

    private Object pullOnce(Order order) throws Exception {
        DefaultMQPullConsumer consumer = pull(order);
        MessageQueue queue = queue(order.map("queue"));
        long offset = order.number("offset", 0);
        int count = (int) order.number("count", 32);
        PullResult pulled;
        if (order.is("block")) {
            pulled = consumer.pullBlockIfNotFound(queue, order.text("expression"), offset, count);
        } else if ("SQL92".equals(order.text("type"))) {
            pulled = consumer.pull(queue, selector(order), offset, count);
        } else {
            pulled = consumer.pull(queue, order.text("expression"), offset, count);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", pulled.getPullStatus().name());
        result.put("nextBeginOffset", pulled.getNextBeginOffset());
        result.put("minOffset", pulled.getMinOffset());
        result.put("maxOffset", pulled.getMaxOffset());
        result.put("messages", pulled.getMsgFoundList() == null ? List.of() : describeAll(pulled.getMsgFoundList()));
        return result;
    }

    // ---- administration that every client can do

    private Object createTopic(Order order) throws Exception {
        DefaultMQProducer producer = producer(order);
        int queues = (int) order.number("queues", 4);
        // 4.9 has no attributes in this call, 5.x insists on them.
        for (Method method : DefaultMQProducer.class.getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            if (method.getName().equals("createTopic") && types.length >= 3 && types[2] == int.class) {
                if (types.length == 3) {
                    invoke(method, producer, order.text("key"), order.text("topic"), queues);
                    return null;
                }
                if (types.length == 4 && types[3] == Map.class) {
                    invoke(method, producer, order.text("key"), order.text("topic"), queues, new HashMap<String, String>());
                    return null;
                }
            }
        }
        throw new NoSuchMethodException("createTopic");
    }

    private Object query(Order order) throws Exception {
        QueryResult found = producer(order).queryMessage(order.text("topic"), order.text("key"),
            (int) order.number("count", 32), order.number("begin", 0), order.number("end", Long.MAX_VALUE));
        return describeAll(found.getMessageList());
    }

    private Object route(Order order) throws Exception {
        Object api = producer(order).getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        // The route's class moved to another package in 5.x: read it by its getters.
        Method method = api.getClass().getMethod("getTopicRouteInfoFromNameServer", String.class, long.class);
        return bean(invoke(method, api, order.text("topic"), 3000L));
    }

    private Object stop(Order order) throws Exception {
        Object client = clients.remove(order.text("on"));
        recorders.remove(order.text("on"));
        decisions.remove(order.text("on"));
        if (client == null) {
            return null;
        }
        CompletableFuture<Void> ended = CompletableFuture.runAsync(() -> shutDown(client));
        if (order.is("fully")) {
            ended.get();
        } else if (!order.is("later")) {
            awaitLeft((ClientConfig) client, ended);
        }
        return null;
    }

    private static void shutDown(Object client) {
        try {
            invoke(client.getClass().getMethod("shutdown"), client);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Waits until a client has committed its offsets and left its groups, but not for the threads of its connections:
     * a 5.x client often takes 3 s to end these. */
    private static void awaitLeft(ClientConfig client, CompletableFuture<Void> ended) throws Exception {
        MQClientInstance instance = MQClientManager.getInstance().getOrCreateMQClientInstance(client);
        Field state = MQClientInstance.class.getDeclaredField("serviceState");
        state.setAccessible(true);
        while (!ended.isDone() && state.get(instance) != ServiceState.SHUTDOWN_ALREADY) {
            Thread.sleep(5);
        }
    }

    // ---- orders in, values out

    private static void configure(ClientConfig client, Order order) throws Exception {
        client.setNamesrvAddr(order.text("nameserver"));
        client.setInstanceName(order.has("instance") ? order.text("instance") : order.text("on"));
        client.setClientIP("127.0.0.1");
        if (order.has("options")) {
            for (Map.Entry<String, Object> option : order.map("options").fields.entrySet()) {
                set(client, option.getKey(), option.getValue());
            }
        }
    }

    private static void set(Object bean, String property, Object value) throws Exception {
        String setter = "set" + Character.toUpperCase(property.charAt(0)) + property.substring(1);
        for (Method method : bean.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                invoke(method, bean, convert(value, method.getParameterTypes()[0]));
                return;
            }
        }
        throw new IllegalArgumentException(bean.getClass().getSimpleName() + " has no option " + property);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object convert(Object value, Class<?> type) {
        if (type.isEnum()) {
            return Enum.valueOf((Class<Enum>) type, (String) value);
        }
        if (value instanceof Number) {
            return type == int.class || type == Integer.class ? (Object) ((Number) value).intValue() : ((Number) value).longValue();
        }
        return value;
    }

    private static Object invoke(Method method, Object target, Object... arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Exception) {
                throw (Exception) wrapped.getCause();
            }
            throw wrapped;
        }
    }

    private Object client(Order order) {
        Object client = clients.get(order.text("on"));
        if (client == null) {
            throw new IllegalArgumentException("no client is called " + order.text("on"));
        }
        return client;
    }

    private DefaultMQProducer producer(Order order) {
        return (DefaultMQProducer) client(order);
    }

    private DefaultMQPushConsumer push(Order order) {
        return (DefaultMQPushConsumer) client(order);
    }

    private DefaultLitePullConsumer lite(Order order) {
        return (DefaultLitePullConsumer) client(order);
    }

    private DefaultMQPullConsumer pull(Order order) {
        return (DefaultMQPullConsumer) client(order);
    }

    private static MessageSelector selector(Order subscription) {
        String expression = subscription.has("expression") ? subscription.text("expression") : "*";
        return "SQL92".equals(subscription.text("type")) ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
    }

    private static MessageQueue queue(Order queue) {
        return new MessageQueue(queue.text("topic"), queue.text("brokerName"), (int) queue.number("queueId", 0));
    }

    private static List<MessageQueue> queues(Order order) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object each : order.list("queues")) {
            queues.add(queue(new Order(each)));
        }
        return queues;
    }

    private static Message message(Order order) {
        Message message = new Message(order.text("topic"), Base64.getDecoder().decode(order.text("body")));
        if (order.has("tags")) {
            message.setTags(order.text("tags"));
        }
        if (order.has("keys")) {
            message.setKeys(order.text("keys"));
        }
        message.setFlag((int) order.number("flag", 0));
        if (order.has("delayLevel")) {
            message.setDelayTimeLevel((int) order.number("delayLevel", 0));
        }
        if (order.has("properties")) {
            // Not putUserProperty: scenarios also set reserved names, such as those of timers.
            order.map("properties").fields.forEach((name, value) -> MessageAccessor.putProperty(message, name, (String) value));
        }
        return message;
    }

    private static Map<String, Object> describe(SendResult sent) {
        if (sent == null) {
            return null;
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", sent.getSendStatus() == null ? null : sent.getSendStatus().name());
        result.put("msgId", sent.getMsgId());
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("queue", sent.getMessageQueue() == null ? null : describe(sent.getMessageQueue()));
        result.put("queueOffset", sent.getQueueOffset());
        result.put("transactionId", sent.getTransactionId());
        result.put("regionId", sent.getRegionId());
        result.put("traceOn", sent.isTraceOn());
        return result;
    }

    private static Map<String, Object> describe(MessageQueue queue) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", queue.getTopic());
        result.put("brokerName", queue.getBrokerName());
        result.put("queueId", queue.getQueueId());
        return result;
    }

    private static List<Object> describeQueues(Collection<MessageQueue> queues) {
        List<Object> result = new ArrayList<>();
        for (MessageQueue queue : queues) {
            result.add(describe(queue));
        }
        return result;
    }

    private static List<Object> describeAll(List<MessageExt> messages) {
        List<Object> result = new ArrayList<>();
        for (MessageExt message : messages) {
            result.add(describe(message));
        }
        return result;
    }

    private static Map<String, Object> describe(Message message) {
        if (message == null) {
            return null;
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", message.getTopic());
        result.put("tags", message.getTags());
        result.put("keys", message.getKeys());
        result.put("flag", message.getFlag());
        result.put("body", message.getBody() == null ? null : Base64.getEncoder().encodeToString(message.getBody()));
        result.put("properties", new TreeMap<>(message.getProperties()));
        if (message instanceof MessageExt) {
            MessageExt stored = (MessageExt) message;
            result.put("brokerName", stored.getBrokerName());
            result.put("queueId", stored.getQueueId());
            result.put("queueOffset", stored.getQueueOffset());
            result.put("msgId", stored.getMsgId());
            result.put("offsetMsgId", stored instanceof MessageClientExt ? ((MessageClientExt) stored).getOffsetMsgId() : null);
            result.put("sysFlag", stored.getSysFlag());
            result.put("bodyCrc", stored.getBodyCRC());
            result.put("bornTimestamp", stored.getBornTimestamp());
            result.put("bornHost", address(stored.getBornHost()));
            result.put("storeTimestamp", stored.getStoreTimestamp());
            result.put("storeHost", address(stored.getStoreHost()));
            result.put("reconsumeTimes", stored.getReconsumeTimes());
            result.put("commitLogOffset", stored.getCommitLogOffset());
            result.put("storeSize", stored.getStoreSize());
            result.put("preparedTransactionOffset", stored.getPreparedTransactionOffset());
            result.put("transactionId", stored.getTransactionId());
        }
        return result;
    }

    private static String address(SocketAddress address) {
        if (!(address instanceof InetSocketAddress)) {
            return null;
        }
        InetSocketAddress internet = (InetSocketAddress) address;
        return internet.getAddress().getHostAddress() + ":" + internet.getPort();
    }

    private static Map<String, Object> describe(Throwable error) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("error", error.getClass().getSimpleName());
        result.put("code", code(error));
        result.put("message", String.valueOf(error.getMessage()));
        return result;
    }

    private static Object code(Throwable error) {
        if (error instanceof MQBrokerException) {
            return ((MQBrokerException) error).getResponseCode();
        }
        if (error instanceof RequestTimeoutException) {
            return ((RequestTimeoutException) error).getResponseCode();
        }
        return error instanceof MQClientException ? ((MQClientException) error).getResponseCode() : null;
    }

    /** Any bean of the client as plain values, by its getters. */
    private static Object bean(Object value) throws Exception {
        if (value == null || value instanceof String || value instanceof Number || value instanceof Boolean) {
            return value;
        }
        if (value instanceof Map) {
            Map<String, Object> result = new LinkedHashMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                result.put(String.valueOf(entry.getKey()), bean(entry.getValue()));
            }
            return result;
        }
        if (value instanceof Collection) {
            List<Object> result = new ArrayList<>();
            for (Object each : (Collection<?>) value) {
                result.add(bean(each));
            }
            return result;
        }
        Map<String, Object> result = new TreeMap<>();
        for (Method method : value.getClass().getMethods()) {
            String name = method.getName();
            if (name.startsWith("get") && name.length() > 3 && !name.equals("getClass") && method.getParameterCount() == 0) {
                result.put(Character.toLowerCase(name.charAt(3)) + name.substring(4), bean(method.invoke(value)));
            }
        }
        return result;
    }

    /** One JSON object with the accessors that orders need. */
    private static final class Order {
        final Map<String, Object> fields;

        @SuppressWarnings("unchecked")
        Order(Object json) {
            fields = (Map<String, Object>) json;
        }

        Object get(String name) {
            return fields.get(name);
        }

        boolean has(String name) {
            return fields.get(name) != null;
        }

        boolean is(String name) {
            return Boolean.TRUE.equals(fields.get(name));
        }

        String text(String name) {
            return (String) fields.get(name);
        }

        long number(String name, long otherwise) {
            return has(name) ? ((Number) fields.get(name)).longValue() : otherwise;
        }

        Order map(String name) {
            return new Order(fields.get(name));
        }

        @SuppressWarnings("unchecked")
        List<Object> list(String name) {
            return has(name) ? (List<Object>) fields.get(name) : List.of();
        }
    }

    /** Just enough JSON: the two client versions ship different libraries for it. */
    private static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Object parse(String text) {
            return new Json(text).value();
        }

        private Object value() {
            switch (peek()) {
                case '{': return object();
                case '[': return array();
                case '"': return string();
                case 't': at += 4; return true;
                case 'f': at += 5; return false;
                case 'n': at += 4; return null;
                default: return number();
            }
        }

        private char peek() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        private Map<String, Object> object() {
            Map<String, Object> result = new LinkedHashMap<>();
            at++;
            while (peek() != '}') {
                if (peek() == ',') {
                    at++;
                    peek();
                }
                String name = string();
                peek();
                at++; // The colon.
                result.put(name, value());
            }
            at++;
            return result;
        }

        private List<Object> array() {
            List<Object> result = new ArrayList<>();
            at++;
            while (peek() != ']') {
                if (peek() == ',') {
                    at++;
                }
                result.add(value());
            }
            at++;
            return result;
        }

        private String string() {
            StringBuilder result = new StringBuilder();
            at++;
            for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
                if (c != '\\') {
                    result.append(c);
                    continue;
                }
                char escaped = text.charAt(at++);
                switch (escaped) {
                    case 'n': result.append('\n'); break;
                    case 't': result.append('\t'); break;
                    case 'r': result.append('\r'); break;
                    case 'b': result.append('\b'); break;
                    case 'f': result.append('\f'); break;
                    case 'u':
                        result.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                        at += 4;
                        break;
                    default: result.append(escaped);
                }
            }
            return result.toString();
        }

        private Object number() {
            int start = at;
            while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            String digits = text.substring(start, at);
            if (digits.matches("-?[0-9]+")) {
                return Long.parseLong(digits);
            }
            return Double.parseDouble(digits);
        }

        static String write(Object value) {
            StringBuilder out = new StringBuilder();
            write(value, out);
            return out.toString();
        }

        private static void write(Object value, StringBuilder out) {
            if (value == null || value instanceof Number || value instanceof Boolean) {
                out.append(value);
            } else if (value instanceof Map) {
                String separator = "{";
                for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                    out.append(separator);
                    quote(String.valueOf(entry.getKey()), out);
                    out.append(':');
                    write(entry.getValue(), out);
                    separator = ",";
                }
                out.append(separator.equals("{") ? "{}" : "}");
            } else if (value instanceof Collection) {
                String separator = "[";
                for (Object each : (Collection<?>) value) {
                    out.append(separator);
                    write(each, out);
                    separator = ",";
                }
                out.append(separator.equals("[") ? "[]" : "]");
            } else {
                quote(String.valueOf(value), out);
            }
        }

        private static void quote(String text, StringBuilder out) {
            out.append('"');
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < 0x20 || c > 0x7e) {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            out.append('"');
        }
    }
}
