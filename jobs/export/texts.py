"""The texts an export is calibrated and checked with: the same on every machine, so that its result is too.

Calibration mixes registers (prose, questions, logs, code, numbers, other scripts), lengths (one word to a full
window), and random pieces of the tokenizer's own vocabulary, which reach the extremes that prose seldom does.

Checks are of two kinds. Hard texts, reversed or joined from sentences that have nothing to do with each other, show
the worst that can happen. Passages that make sense show what search will see: quantised vectors of such text lie
nearer to fp32's (all-MiniLM-L6-v2: .9948 on average on 13,447 sentences of an encyclopaedia, .9931 on the hard ones).
"""

from __future__ import annotations

import random

SEED = 20_240_601
HARD_PARAGRAPHS = 30  # about 5,000 tokens, over which every candidate runs

SENTENCES = """
hello
error
What is the capital of Portugal?
how do i reset my password
cheap flights to oslo in march
who invented the printing press and when
symptoms of iron deficiency in adults
difference between mutex and semaphore
best way to store vectors on disk
why is the sky blue?
pod stuck in CrashLoopBackOff after upgrade
postgres too many connections
The cat sat on the mat and watched the rain.
A treaty signed in 1648 ended thirty years of war in central Europe.
Photosynthesis turns carbon dioxide and water into glucose and oxygen, using the energy of sunlight.
The committee will meet again on Thursday, unless the chair decides otherwise.
Her grandmother kept bees, sold honey at the market, and never once complained about the stings.
Mitochondria have their own DNA, inherited in most animals from the mother alone.
The central bank raised its benchmark rate by 25 basis points to 4.75%, the highest level since 2007.
Shares of the company fell 12.4% in early trading after it cut its forecast for the third quarter.
The defendant shall pay the plaintiff's reasonable costs within thirty (30) days of the date of this order.
Take one tablet twice a day with food; do not exceed four tablets in twenty-four hours.
Preheat the oven to 180 °C, butter a tin, and whisk three eggs with 150 g of sugar until pale.
Goal! In the ninetieth minute the substitute headed the ball past a goalkeeper who had not moved.
In a hole in the ground there lived a hobbit.
To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer.
I love this phone, but the battery barely lasts a day and the camera is just ok. 3/5 stars.
lol that was AMAZING!!! cant wait 4 the next one :) #bestday
Dear Ms Alvarez, thank you for your letter of 3 May. I regret that we are unable to offer a refund.
Black holes emit thermal radiation whose temperature is inversely proportional to their mass.
We propose a simple network architecture based solely on attention, dispensing with recurrence entirely.
Randomised trial of 412 patients: relative risk 0.71 (95% CI 0.55 to 0.92, p = 0.009).
Let G be a finite group and p a prime dividing its order; then G has an element of order p.
The derivative of sin(x) is cos(x), and the integral of 1/x is ln|x| + C.
Water boils at a lower temperature at altitude because the atmospheric pressure is lower there.
def add(a: int, b: int) -> int: return a + b
for (int i = 0; i < n; ++i) { sum += values[i] * weights[i]; }
SELECT name, count(*) FROM orders WHERE created_at > '2024-01-01' GROUP BY name HAVING count(*) > 10;
{"id": 42, "status": "active", "tags": ["a", "b"], "price": 19.99, "nested": {"ok": true}}
<div class="card"><a href="/docs/install.html">Install</a></div>
git rebase --interactive HEAD~3 && git push --force-with-lease origin feature/login
kubectl get pods -n production -o wide | grep -v Running
ERROR 2024-06-01T12:00:03.551Z [worker-7] java.lang.NullPointerException at com.example.Main.run(Main.java:88)
kernel: Out of memory: Killed process 4312 (java) total-vm:8123456kB, anon-rss:6021344kB
WARN disk usage of /var/lib/docker at 93%, threshold 90%, host db-03.eu-west
The service returned HTTP 503 for 4 minutes; p99 latency rose from 120 ms to 2.3 s before the rollback.
Certificate expired: renew with the ACME client, reload the proxy, then check the chain.
connection refused 10.0.3.17:5432
192.168.0.1 10.0.0.0/8 fe80::1 255.255.255.0
3.14159265358979 2.71828 1.41421 6.02e23 -273.15 0x7fffffff 1,000,000
2024-02-29 23:59:59 UTC, week 09, day 060
$4,299.00 €1.250,50 £75 ¥12000 15% off
a b c d e f g h i j k l m n o p q r s t u v w x y z
!!! ??? ... --- *** /// ((( ))) [[[ ]]] {{{ }}}
the the the the the the the the the the the the
THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
Portez ce vieux whisky au juge blond qui fume, s'il vous plaît.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Η γρήγορη καφέ αλεπού πηδάει πάνω από τον τεμπέλη σκύλο.
快速的棕色狐狸跳过懒狗。这是一个关于检索系统的句子。
素早い茶色の狐が怠け者の犬を飛び越える。
الثعلب البني السريع يقفز فوق الكلب الكسول
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng.
Pijamalı hasta yağız şoföre çabucak güvendi.
😀 🚀 great launch today 🎉🎉
supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IGVuY29kZWQgdGV4dA==
https://example.org/search?q=vector+database&page=2#results
def quicksort(xs): return xs if len(xs) < 2 else quicksort([x for x in xs[1:] if x < xs[0]]) + [xs[0]]
The Danube rises in the Black Forest and flows through ten countries before it reaches the Black Sea.
Insulin lowers blood glucose by letting muscle and fat cells take it up.
Beyoncé's sixth studio album was released without announcement in April 2016.
The Super Bowl was played at Levi's Stadium in Santa Clara, California, on February 7, 2016.
Teachers in the district earn on average eight percent less than those of neighbouring counties.
Chlorine gas reacts violently with sodium, and the product is ordinary table salt.
Genghis Khan's empire was divided among his sons after his death in 1227.
A rebuild reads the log up to a sequence number, trains the quantiser and seals a generation.
To rotate the signing key, create a new one, deploy it beside the old, and revoke the old after a day.
An elevator pitch should take no longer than the ride.
The orchestra tuned; the lights went down; nobody coughed.
""".strip().splitlines()

# One passage a line, none of which calibration sees.
PASSAGES = """
The lighthouse was built in 1811 on a reef that lies under water at high tide; masons had a few hours a day for it.
Bread dough rises because yeast turns sugar into carbon dioxide. A cool kitchen slows this down and adds taste.
The river floods its lower valley nearly every spring, so the older farmhouses stand on mounds that were raised by hand.
In 1869 the two railway lines met in the desert, and the journey across the continent shrank from months to a week.
A passport must be valid for at least six months after the date of entry, and have two empty pages next to each other.
The violin's back is usually maple and its front spruce; varnish protects the wood but hardly changes the sound.
Honeybees tell each other where flowers are by dancing: the angle gives the direction, the run the distance.
The treaty left the islands with the crown but let fishermen of both nations land there to dry their catch.
After the merger the company closed four of its eleven plants and moved its head office to Rotterdam.
Vaccines train the immune system with a harmless piece of a pathogen, so that it answers faster to the real one.
Glaciers carve valleys with a round floor and steep walls, while rivers on their own leave a narrow notch.
The mayor promised a new tram line before the election; the council later found that the bridge could not carry it.
When the database runs out of connections, look first for transactions that were opened and never finished.
To replace the filter, close the valve, wait until the pressure gauge reads zero, and unscrew the housing by hand.
The novel opens with a funeral in the rain and works backwards, so that the reader learns last how the family fell out.
Copper conducts electricity almost as well as silver and costs a hundredth of it, which is why wires are made of it.
The court held that the landlord had to repair the roof even though the lease said nothing of it.
Monsoon winds reverse with the seasons: in summer they blow from the sea and bring rain, in winter from the dry land.
She won the women's marathon in two hours and nineteen minutes, a record for the course that stood for eleven years.
The certificate had expired over the weekend, and every client that checked it refused to talk to the service.
Potatoes came to Europe from the Andes in the sixteenth century and were grown for their flowers before anyone ate them.
A telescope's mirror is measured by its width, because a wider one gathers more light and shows finer detail.
The university was founded in 1365 by a duke who wanted to keep up with his father-in-law, an emperor.
Roll the update out to one server, watch the error rate for ten minutes, and only then continue with the rest.
Octopuses have three hearts; two pump blood through the gills, and the third stops beating when the animal swims.
The museum returned the bronze heads after the curators had traced them to a palace that was looted in 1897.
Interest on the loan is fixed for five years and follows the central bank's rate after that.
Early printers cast their letters from lead, tin and antimony, an alloy that fills the mould and hardly shrinks.
The bridge sways a little in strong winds, as it was designed to; it is closed to lorries above fifty knots.
Children learn to tell apart the sounds of their own language within the first year, and lose the ear for others.
The spacecraft passed the planet at a distance of twelve thousand kilometres and sent back pictures for three days.
Customers who return a product within thirty days get their money back; after that the shop repairs or replaces it.
A cache that is never invalidated answers quickly and wrongly. Put the version of the data into the key instead.
The general crossed the mountains in October, lost half of his army to cold, and still reached the capital by spring.
Salt lowers the freezing point of water, so roads are salted before frost, though below minus fifteen it hardly helps.
The painter mixed his own colours from minerals and oil, and his blues have stayed bright for four hundred years.
Employees may carry five days of leave into the next year if they tell the personnel office before the end of November.
The second half began with a penalty, and from then on the visitors, a man short, defended around their own goal.
Whales sing in dialects: groups that meet in winter pick up each other's phrases and take them across the ocean.
The pump failed because sand had worn its seal; the report recommends a finer screen and a check every quarter.
""".strip().splitlines()


KNOWN_ANSWER_TEXTS = [SENTENCES[3], SENTENCES[14], SENTENCES[42], SENTENCES[62]]


def calibration_texts() -> list[str]:
    """Each bundled sentence alone, and sixty paragraphs of two to fourteen of them in a fixed random order."""
    return [*SENTENCES, *paragraphs(60, SEED)]


def hard_texts() -> list[str]:
    """Paragraphs that calibration has not seen in this order, and each sentence that reads otherwise backwards."""
    backwards = [" ".join(reversed(sentence.split())) for sentence in SENTENCES]
    changed = [text for text, sentence in zip(backwards, SENTENCES) if text != sentence]
    return [*changed, *paragraphs(HARD_PARAGRAPHS, SEED + 1)]


def paragraphs(count: int, seed: int) -> list[str]:
    """`count` joins of two to fourteen bundled sentences; the same for the same seed."""
    chance = random.Random(seed)
    return [" ".join(chance.sample(SENTENCES, chance.randint(2, 14))) for _ in range(count)]


def random_ids(
    vocabulary: list[int], head: list[int], tail: list[int], *, count: int, length: int
) -> list[list[int]]:
    """`count` sequences of up to `length` ids: random ones, always at least one, between special ids."""
    chance = random.Random(SEED + 2)
    room = max(1, length - len(head) - len(tail))
    return [
        [*head, *(chance.choice(vocabulary) for _ in range(chance.randint(min(3, room), room))), *tail]
        for _ in range(count)
    ]
