"""The vocabulary of small talk: named lists of phrases, as data.

A name stands alone on a line with a colon; its phrases follow, with bars between them. `{name}` in
a phrase is replaced by a random phrase of that list. `{name1}` is drawn once per turn, so that the
reply can take up what the user said. Nothing in here is the value of a fact.
"""

GRAMMAR = """
dish:
    lentil soup | mushroom risotto | a potato gratin | fish stew | a spinach omelette | roast
    carrots | a chickpea curry | onion soup | stuffed peppers | a pumpkin pie | fried rice | a
    bean salad | tomato pasta | leek quiche | vegetable dumplings | barley broth | a cabbage
    bake | aubergine stew | a warm grain bowl | split pea soup | cauliflower bites | a sausage
    casserole | noodle broth | corn fritters | a beetroot tart | goulash | courgette pancakes |
    baked trout | a kale salad | ratatouille | rye bread with radishes | sweet potato mash | an
    egg sandwich | turnip soup | buckwheat porridge | a crab cake | sauerkraut
hobby:
    baking bread | repairing old radios | running in the hills | drawing with charcoal |
    learning chess openings | growing tomatoes | sewing curtains | bird watching | juggling |
    restoring chairs | writing short poems | practising calligraphy | collecting stamps |
    building model bridges | singing in a choir | brewing cider | folding paper cranes |
    polishing silver | learning sign language | indoor climbing | mending bicycles | pressing
    leaves | keeping a diary | fencing | playing darts | weaving baskets | practising magic
    tricks | carving spoons | hiking at dawn | making candles | solving crosswords | tap dancing
    | painting shutters | roller skating | translating song lyrics | star gazing | pickling
    vegetables
place:
    the park | the riverside path | the market square | the hill behind the church | the old
    harbour | the corner bakery | the art museum | the ice rink | the botanical garden | the
    flea market | the community hall | the lake | the viewpoint | the bookshop | the pier | the
    allotment | the canal | the disused quarry | the bus depot | the clock tower | the skate
    park | the orchard | the ferry terminal | the castle ruin | the observatory | the food court
    | the swimming pool | the town archive | the mill | the car boot sale | the rooftop terrace
    | the maze | the cinema foyer | the meadow | the lighthouse
weather:
    drizzly | foggy | windy | sticky and hot | bright and crisp | grey | stormy | frosty |
    surprisingly mild | unsettled | humid | icy | muggy | breezy | gloomy | glorious | showery |
    freezing | hazy | changeable | bitterly cold | damp | sunny with a sharp wind | stuffy
object:
    kettle | bookcase | umbrella | dishwasher | lawnmower | printer | ceiling lamp | toaster |
    garden hose | sofa | blender | doorbell | heater | rucksack | typewriter | vacuum cleaner |
    hairdryer | wheelbarrow | alarm radio | coffee grinder | extension cable | iron | fan | deck
    chair | tent | letterbox | freezer | projector | stapler | thermos | rice cooker | ladder |
    sewing machine | electric drill
film:
    a slow detective series | a film about deep-sea divers | a cartoon about robots | a
    documentary on glaciers | a courtroom drama | a western from the fifties | a silent comedy |
    a thriller on a night bus | a musical set in a hospital | a quiz show rerun | a spy parody |
    a heist story on a train | a ballet recording | a baking contest | a black-and-white
    melodrama | a nature film about eels | a hospital soap | a stop-motion fairy tale | a road
    movie with two nuns | a lecture about comets | a submarine adventure | a reality show about
    lumberjacks | a zombie romance
book:
    a biography of a mapmaker | a ghost story | a history of salt | a fat fantasy novel | a book
    about beekeeping | essays on walking | a comic about two detectives | a travel diary from
    the desert | a manual for sailors | a collection of fables | a novel about a lost violin
    maker | a guide to mosses | the memoirs of a lift operator | a collection of ghostly recipes
    | a crime story set on a glacier | a history of umbrellas | a thick book on knots | letters
    between two astronomers | a satire about office life | a play in verse | an atlas of
    imaginary islands | a handbook for night watchmen
why:
    how bridges carry so much weight | why leaves change in autumn | how yeast works | why the
    sea is salty | how noise-cancelling headphones work | why onions make us cry | how glass is
    made | why planes leave white trails | how a lighthouse was kept burning | why yawning
    spreads | how tunnels are dug under rivers | why bread goes stale | how magnets stick | why
    stars twinkle | how escalators fold their steps | why popcorn pops | how honey keeps for
    centuries | why we get hiccups | why ice floats | how a zip closes | why cats land on their
    feet | how soap cleans | why the moon looks bigger at the horizon | how sails push a ship
    against the wind | why ketchup is so slow | how bees find their way home | why metal feels
    colder than wood | how a thermos keeps soup hot | why mirrors swap left and right | how
    pencils are filled | why we forget dreams | how fireworks get their shades | why old books
    smell | how a microwave heats | why deserts are cold at night | how coins are minted
task:
    tidy a cluttered hallway | write a polite complaint | plan a rainy weekend | stretch after a
    long run | keep herbs alive indoors | get wax out of a tablecloth | wake up less grumpy |
    sharpen kitchen knives | pack lighter for a weekend | make small talk at a party | remember
    to drink more water | stop a door from squeaking | clean a burnt pan | read more and scroll
    less | fall asleep faster | choose a good melon | write a toast for a friend | get through a
    boring meeting | untangle a long cable | fold a fitted sheet | stop snacking at midnight |
    keep a lawn green | get a stain out of wool | calm a nervous traveller | arrange a tiny
    balcony | cook for ten people | learn twenty new words | store apples through winter | paint
    a ceiling without dripping | stay awake in the cinema | wrap an odd-shaped present | say no
    without offending | find lost keys | pick a decent avocado | keep bread fresh | start
    jogging again
creature:
    hedgehog | heron | squirrel | fox | bumblebee | woodpecker | toad | badger | dragonfly | owl
    | magpie | deer | snail | bat | hare | cormorant | newt | weasel | stork | beetle |
    kingfisher | spider | seagull | mole | salamander | pheasant | swan | moth
person:
    a neighbour | somebody on the bus | the woman at the bakery | a man with a ladder | an old
    classmate | the new caretaker | a street musician | the postman | two teenagers | a lady
    with a huge hat | a very serious child | a cyclist in a raincoat | the chess club | a tour
    guide | the man from the kiosk | a delivery driver | two nuns | a retired sailor | a bored
    security guard | the choir director | someone dressed as a carrot | a toddler with a bucket
    | the woman upstairs | a taxi driver | a scout troop
did:
    laughed for ten minutes | spilled tea all over the table | told a long story | fixed the
    whole thing with tape | dropped a bag of oranges | whistled the same tune twice | argued
    about nothing | waved at everyone | danced in the queue | asked for directions | sang the
    anthem backwards | handed out leaflets | lost a shoe | gave a speech to the pigeons | tried
    to fold a map | sold me a lamp | recited a poem | fell into a hedge | counted the steps
    aloud | offered everyone gum | took forty pictures of a bin | complained about the music |
    got stuck in the revolving door | juggled three lemons
good:
    lovely | great fun | rather nice | surprisingly good | a small triumph | delightful | better
    than expected | very relaxing | worth it | charming | splendid | a pleasant surprise | quite
    a success | soothing | funny in the end | remarkably easy | memorable
bad:
    a bit of a mess | rather dull | exhausting | a small disaster | louder than expected | too
    long | slightly annoying | disappointing | chaotic | not my thing | a waste of time | hard
    work | crowded | soggy | confusing | tedious | a close call
mood:
    cheerful | a little tired | restless | quite content | oddly nostalgic | full of energy |
    lazy | impatient | calm | grumpy but hopeful | distracted | curious | brave | sleepy |
    talkative | a bit lost | suspiciously productive | mellow | stubborn | dreamy | relieved |
    jumpy
when:
    this morning | last night | over the weekend | after lunch | on the way home | yesterday |
    before breakfast | during the break | in the afternoon | earlier | at lunchtime | on Sunday
    | late in the evening | two days ago | before work | around noon | on the way out | at the
    crack of dawn
opinion:
    cold pizza beats warm pizza | long walks solve most problems | meetings should end after
    twenty minutes | paper maps are underrated | every kitchen needs a radio | puns are an art
    form | mornings are overrated | soup counts as a full meal | board games bring out the worst
    in people | the best seats are near the window | rain sounds better than music | nobody
    really likes surprise parties | queues teach patience | handwritten letters should come back
    | umbrellas are never where they should be | breakfast works at any hour | elevators should
    play jazz | socks make poor presents | every street needs a bench | leftovers taste better |
    nobody needs more than one remote control | trains are the finest way to travel | hats
    deserve a comeback | small talk is harder than chess | the middle of a cake is the best part
    | museums should open at night | instructions are for the brave | gravel is the worst
    surface | autumn is the real new year
joke:
    What do you call a fish without eyes? A fsh. | Why did the scarecrow win a prize? He was
    outstanding in his field. | I told my plants a joke, and they just stood there. | Why was
    the broom late? It overswept. | What is brown and sticky? A stick. | I used to be afraid of
    hurdles, but I got over it. | Parallel lines have so much in common; a pity they never meet.
    | Why did the bicycle fall over? It was two-tired. | The calendar is worried: its days are
    numbered. | I would tell a joke about paper, but it is tearable. | What do clouds wear under
    their coats? Thunderwear. | My belt was arrested for holding up a pair of trousers. | Why do
    bees hum? They forgot the words. | What did the wall say to the other wall? Meet you at the
    corner. | How do trees get online? They log in. | Why was the maths book sad? Too many
    problems. | What kind of shoes do spies wear? Sneakers. | I have a joke about elevators, and
    it works on many levels. | Why did the cookie see a nurse? It felt crumby. | What gets
    wetter the more it dries? A towel. | Why do ghosts love lifts? They raise their spirits. |
    What has hands but cannot clap? A clock.
thanks:
    Thanks, that was helpful. | Thank you, I needed that. | Cheers, good advice. | Much
    appreciated. | That was kind of you, thanks. | Thanks a lot, it worked. | You were right,
    thank you. | Great, thanks for the patience. | Brilliant, thanks again. | I appreciate it. |
    That cleared things up, thank you. | Thanks, that made my day. | Good point, thanks. |
    Perfect, thank you so much. | Thanks, I will give it a go. | You saved me an hour, thanks.
plan:
    try {dish} again | walk to {place} | spend an hour on {hobby} | watch {film} | start {book}
    | clean the {object} | do absolutely nothing | call an old friend | sort the drawer with the
    cables | take the slow route home | bake something | tidy the shed | visit {place} | cook
    {dish} for everyone | borrow {book} | give {hobby} a chance | take a nap | look for a better
    {object} | stay off the internet
intensely:
    really | honestly | to be fair, | I must say | somehow | of course | as usual, | oddly
opening:
    I made {dish1} {when}, and it was {good}. | I made {dish1} {when}, and it was {bad}. | It is
    so {weather} here today. | The weather turned {weather} {when}. | I went to {place1} {when};
    it was {good}. | We ended up at {place1} {when}, which was {bad}. | I have been {hobby1}
    lately. | My new thing is {hobby1}, believe it or not. | I watched {film1} {when} and fell
    asleep halfway. | I watched {film1} {when}; it was {good}. | I am reading {book1} at the
    moment. | I finished {book1} {when}. | I saw a {creature1} near {place} {when}. | There was
    a {creature1} in the garden {when}! | The {object1} broke {when}. | I finally bought a new
    {object1}. | At {place}, {person} {did} {when}. | You should have seen it: {person} {did} at
    {place}. | I feel {mood1} today. | Somehow I am {mood1} this week. | I think {opinion1}. |
    Unpopular opinion: {opinion1}. | Here is one for you. {joke1} | {joke1} | {thanks} |
    {thanks} Now something else. | Can you tell me {why1}? | Do you know {why1}? | I always
    wondered {why1}. | Do you have a tip on how to {task1}? | How would you {task1}? | Give me
    one idea to {task1}, please. | Please suggest something to go with {dish1}. | What would you
    cook instead of {dish1}? | Is it worth going to {place1} when it is {weather}? | Would you
    rather try {hobby1} or {hobby}? | Tell me something cheerful. | Say something nice about
    Mondays. | Could you make up a name for a {creature1} that likes {dish}? | Write me one line
    about a {creature1} and a {object}. | Good morning! | Hello again. | I am back from
    {place1}. | I cannot decide between {dish1} and {dish}. | Guess what: {person} {did} at
    {place} {when}. | My plan for today: {plan1}. | I might {plan1}, if it is not too {weather}.
    | What should I bring to {place1}? | Who invented the {object1}, do you think? | Is {dish1}
    difficult to make? | Rate this idea: {plan1}. | Any ideas for a {weather} afternoon? | Which
    is better, {dish1} or {dish}? | Describe {place1} in five words. | Let us talk about
    {hobby1}. | Explain {why1} as if I were six. | Quick question: {why1}? | If a {creature1}
    could talk, what would it say? | Recommend something like {film1}. | I dreamt of a
    {creature1} that {did} {when}. | I bet nobody knows {why1}. | My neighbour swears that
    {opinion1}. | Remind me never to trust a {object1}. | I got soaked near {place1} {when}. |
    It took me ages to {task1}. | I need to {task1} before Friday.
aside:
    It took me half the day. | I would do it again. | Never again, I think. | Maybe I will
    {plan} later. | Later I want to {plan}. | Next week I might {plan}. | Everyone else seemed
    to enjoy it. | Nobody noticed, luckily. | It smelled wonderful. | I was {mood} the whole
    time. | {person2}, of all people, {did}. | At least it was not {weather}. | It was
    {weather}, so I stayed in. | The {object} made strange noises again. | I blame the {object}.
    | It reminded me of {film}. | It reminded me of {book}. | {intensely2} I expected less. |
    That is life, I suppose. | I needed a break anyway. | Do not laugh. | I still think
    {opinion}. | You know that {opinion}, right? | Afterwards I treated myself to {dish}. | I
    had {dish} afterwards. | Is that strange? | Does that make sense? | What do you think? | Any
    thoughts? | A {creature} watched me the entire time. | I even saw a {creature}. | I told
    {person} about it, who {did}. | The trip to {place} can wait. | I have no idea {why}, by the
    way. | Perhaps {hobby} would suit me better. | {intensely} it was {good}. | It turned out
    {bad}. | Somebody should write {book} about it. | {dish} would have helped. | I blame
    {person}. | Next time I will {task}. | It had something of {film}. | I ended up at {place}.
    | Then it got {weather}. | Afterwards I was {mood}. | By then {person} {did}. | That beats
    {hobby}. | A {object} would have been handy. | At {place} it would have been worse. | Funny
    how {opinion}. | Meanwhile a {creature} ran past.
answer:
    I can picture that. | Fair enough. | Ha, I like that. | Good question. | Happy to help. | I
    see what you mean. | That happens to the best of us. | What a day. | Interesting thought. |
    You are welcome. | Nicely put. | Sounds familiar. | That made me smile. | Well done. | One
    step at a time. | I would not worry about it. | Let me think about that. | It depends a
    little. | Glad you told me. | {good2}, I would say. | Now that is {good2}. | That must have
    been {good2}. | Well, {opinion}. | Ha, like {film}. | I can see why you feel {mood}. | Not
    {bad2} at all, then. | Hard to say. | Sure. | Hm, let me see. | With pleasure. | Oh, nice. |
    No doubt. | Quite possibly. | Ask {person}, maybe. | Probably yes. | Sounds like {book}. |
    You could {plan}. | I am on your side. | Point taken.
remark:
    A short break often helps. | Small steps are usually enough. | Some people swear by {hobby}.
    | {dish2} would go well with that. | A walk to {place} might be just right. | The answer is
    usually simpler than it seems. | It has to do with heat and pressure, mostly. | It comes
    down to patience and practice. | Start with the easiest part. | Ten minutes a day are
    plenty. | I would keep it simple. | A pinch of salt rarely hurts. | There is no wrong way to
    do it. | If it stays {weather}, I would wait. | You could also {plan}. | Many people feel
    {mood} about that. | A {creature} would probably agree. | I have heard that {opinion}. | It
    might be time for a new {object}. | A good evening for {film}, perhaps. | Then {book} could
    be the right company. | Let me know how it goes. | Tell me more if you like. | Enjoy the
    rest of the day. | I hope tomorrow is calmer. | That deserves a cup of tea. | Sleep usually
    fixes it. | The {object} can wait. | It helps to {task} first. | Perhaps {person} knows
    more. | {hobby3} teaches the same lesson. | Not everybody likes {dish}. | I would bring a
    {object}. | {place3} is quieter. | When it is {weather}, almost anything goes. | A
    {creature} would have done the same. | Next to {film} it is nothing. | Somewhere in {book}
    there is an answer. | Try to {task}, too. | Better {mood} than bored.
echo:
    About {dish1}: less is often more. | {dish1} can be tricky. | {place1} is always worth a
    visit. | {hobby1} takes some patience. | {film1} is an unusual choice. | {book1} sounds like
    good company. | A {creature1} is a lucky sign, some say. | A {object1} never breaks at a
    good time. | Being {mood1} passes. | People who say that {opinion1} may have a point. | It
    is a nice riddle {why1}. | To {task1}, begin small and keep going.
"""
